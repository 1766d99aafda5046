from port import call, components, dtypes, framework, weights
from port import choices as config
