"""The meanings of constructor arguments: config fields, and other things needed to build a module."""

from collections.abc import Iterable
from typing import Any

# meaning -> names of its argument, without underscores, likeliest first
_FIELDS = {
    "model_width": """
        dmodel modeldim modelsize modelwidth dim nembd nemb embed embeddim embeddingdim embsize embdim embedsize embeddingsize
        hiddensize width d size features nfeatures numfeatures normalizedshape channels units qkvfeatures dembed dimmodel idim indim
        inputdim infeatures outfeatures outdim querydim emsize ninp numhiddens modeldimension dword dwordvec din dembedding hidsize
        wordvecsize featuredim querysize encoderembeddim emb
    """,
    "heads": """
        heads nhead nheads numheads h numattentionheads numhead nhd attentionheads head encoderattentionheads numberofheads attnheads
        nattnheads numattnheads nattentionheads headnum headcount nbheads attheads mhaheads numselfattentionheads
    """,
    "key_value_heads": """
        nkvheads numkvheads kvheads nkvhead keyvalueheads numkeyvalueheads ngroups querygroups numquerygroups
    """,
    "key_size": "dk keydim keysize qkdim headdim headsize dhead dimhead dq",
    "value_size": "dv valuedim valuesize",
    "feed_forward_width": """
        dff ff ffdim dimff dimfeedforward feedforwarddim ffndim ffnsize dffn dinner innerdim dimfeedfoward intermediatesize
        intermediatedim mlpdim dmlp pfdim hiddendim dhidden ffnhidden feedforwardwidth ffwidth ninner filtersize ffhidden ffnwidth
        nhid hiddim feedforwardsize ffsize hidden hiddenfeatures mlphidden dimhidden hiddenwidth hiddenunits encoderffndim
        ffnnumhiddens feedforwardhidden densedim latentdim dhid feedforwarddimension ffnhiddensize ffhiddensize ffhiddendim ffnhiddendim
        innersize dimfeed ffnembeddim encoderffnembeddim dfeedforward dfeedfwd mlpwidth mlphiddendim ffwdim dinnerhid denseunits
        intermediate pointwisedim feedforwardhiddendim ffunits
    """,
    "source_vocabulary": """
        srcvocabsize sourcevocabsize srcvocab sourcevocab sourcevocabulary inputvocabsize encvocsize nsrcvocab srcvocabulary
        encvocabsize srcsize vocabsize vocab ntoken ntokens numembeddings nvocab vocabulary numtokens inputvocab srctokens
        vocabularysize encodervocabsize nwords numwords vocsize dictsize srcvocsize srcntoken ninpvocab inputvocabularysize maxfeatures
        numembedding
    """,
    "target_vocabulary": """
        tgtvocabsize trgvocabsize targetvocabsize tgtvocab trgvocab targetvocab targetvocabulary outputvocabsize decvocsize ntgtvocab
        ntrgvocab decvocabsize tgtsize outputdim outputvocab tgttokens tgtvocabulary decodervocabsize trgvocsize tgtvocsize noutputvocab
        outputvocabularysize targetvocsize trgsize
    """,
    "encoder_layers": """
        numencoderlayers nenclayers encoderlayers numenc nenc enclayers nlayers numlayers n nlayer depth numhiddenlayers numblocks
        layers nblocks nx numberoflayers numblks nblks numlayer nstack numstacks nblock numblock blocks nencoderlayers numenclayers
    """,
    "decoder_layers": "numdecoderlayers ndeclayers decoderlayers numdec ndec declayers ndecoderlayers numdeclayers",
    "max_positions": """
        maxlen maxseqlen maxlength maxseqlength blocksize seqlen maximumpositionencoding maxpositionembeddings srcseqlen tgtseqlen
        contextlength npositions nctx seqlength maxpositions contextsize sequencelength maxsequencelength positions maxsrclen
        maxtgtlen nposition numpositions maxposition maxtokens maxpos maxsequence maxnumtokens maxsourcelength maxtargetlength
    """,
    "epsilon": "eps epsilon layernormeps layernormepsilon normeps lneps lnepsilon rmsnormeps",
    "padding_id": """
        padidx paddingidx srcpadidx padid padtokenid pad trgpadidx tgtpadidx padtoken paddingid srcpad tgtpad trgpad
    """,
    "rate": """
        dropout dropprob dropoutrate rate pdrop dropoutprob droprate attndropout attentiondropout residdropout residpdrop attnpdrop
        embdpdrop hiddendropoutprob attentionprobsdropoutprob resdropout attdropout p dropoutp dropoutprobability dropoutratio drrate
        drop attndrop projdrop embdropout embeddropout embeddingdropout residualdropout ffdropout ffndropout activationdropout reludropout
        hiddendropout pedropout layerdropout attentiondropoutrate residdrop embdrop
    """,
    "expansion": """
        forwardexpansion ffmult ffnmult mlpratio expansion expansionfactor ffexpansion widthmult ffhiddenmult ffnexpansion mlpmult
        feedforwardexpansion
    """,
    "rotary_base": "ropetheta theta rotarybase ropebase",
    "rope": "ropeparameters ropescaling",
    "activation_name": "hiddenact hiddenactivation actfn",
    "one": "multipleof",
    "nothing": "ffndimmultiplier",
    "index": "layerid layeridx layerindex",
    "off": "usecache tiewordembeddings outputattentions outputhiddenstates",
    "implementation": "attnimplementation",
    "device": "device",
    "special_id": """
        trgsosidx sosidx bosidx eosidx trgeosidx srcsosidx tgtsosidx sosid bosid eosid startid endid unkidx unkid sostoken eostoken clsid
        sepid maskid trgbosidx tgtbosidx starttokenid endtokenid bostokenid eostokenid
    """,
    "norm_first": "normfirst prenorm preln prelayernorm isprenorm normbefore normalizebefore",
    "bias": "bias usebias qkvbias attentionbias attnbias outbias mlpbias",
    "batch_first": "batchfirst",
    "random": "rngs",
    "dtype": "paramdtype",
}
_EITHER = ("hiddendim", "hiddim", "hidden", "dhid", "nhid")  # the model width, unless another argument is
_WIDTHS = ("keysize", "valuesize")  # next to `query_size`, these are widths of inputs
_ALSO = {"hiddensize": "feed_forward_width", "vocabsize": "target_vocabulary"}  # the meaning if another argument already has the first one
_MEANINGS = {name: meaning for meaning, names in _FIELDS.items() for name in names.split()}
# the expression for a meaning that is not a config field
_TEXTS = {
    "rate": "0.0",
    "norm_first": 'config.norm_placement == "pre"',
    "bias": "True",
    "batch_first": "True",
    "random": "nnx.Rngs(0)",
    "dtype": "dtype",
    "expansion": "4",
    "rope": '{"rope_type": "default", "rope_theta": config.rotary_base}',
    "activation_name": '"silu"',
    "one": "1",
    "nothing": "None",
    "index": "0",
    "off": "False",
    "implementation": '"eager"',
    "device": '"cpu"',
    "special_id": "1",
}
CONFIGURATIONS = ("config", "cfg", "args", "hparams", "params", "conf", "configuration")  # names of an argument that holds the others
# passed even if they have a default
_WANTED = ("rate", "batch_first", "norm_first", "bias", "padding_id", "epsilon", "dtype", "key_value_heads", "rotary_base")


def expression(meaning: str) -> str:
    """Returns the expression for an argument of that meaning."""
    return _TEXTS.get(meaning, f"config.{meaning}")


def is_wanted(meaning: str, default: Any) -> bool:
    """Whether an argument with a default is passed: a size or a choice, not a derived size."""
    return meaning in _WANTED or (isinstance(default, int) and not isinstance(default, bool))


def meaning_of(name: str, among: Iterable[str]) -> str:
    """Returns the argument's meaning, given the other arguments; "" if unknown."""
    plain, others = _plain(name), {_plain(one) for one in among}
    of_tokens = {"inputdim"} & others if "outputdim" in others else set()
    if plain in of_tokens:
        return "source_vocabulary"
    taken = {_MEANINGS.get(one) for one in others - {plain} - of_tokens}
    if (plain in _EITHER and "model_width" not in taken) or (plain in _WIDTHS and "querysize" in others):
        return "model_width"
    first = _MEANINGS.get(plain, "")
    return _ALSO.get(plain, first) if first in taken else first


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
