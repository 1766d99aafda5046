/* Layer normalisation in float64 and float32 as a port that is a command: nothing but the C library.
 *
 *     cc -O2 -o layer_norm layer_norm.c -lm
 *     rosettaformer check --command ./layer_norm
 *
 * `layer_norm --describe` says what it covers. `layer_norm CASES OUTPUTS` reads CASES/manifest.json and answers every case in it
 * by a file in OUTPUTS. Whatever it does not understand ends it with a message and exit status 1. */

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("layer_norm: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static void *allocate(size_t size) {
    void *memory = calloc(size ? size : 1, 1);
    if (!memory) fail("out of memory for %zu bytes", size);
    return memory;
}

/* --- files --- */

typedef struct {
    char *bytes; /* ends in a zero that is not counted */
    size_t size;
} File;

static char *join(const char *folder, const char *name) {
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = allocate(size);
    snprintf(path, size, "%s/%s", folder, name);
    return path;
}

static File read_file(const char *path) {
    FILE *stream = fopen(path, "rb");
    if (!stream) fail("cannot open %s: %s", path, strerror(errno));
    if (fseek(stream, 0, SEEK_END)) fail("cannot read %s", path);
    long size = ftell(stream);
    if (size < 0) fail("cannot read %s", path);
    rewind(stream);
    File file = {allocate((size_t)size + 1), (size_t)size};
    if (fread(file.bytes, 1, file.size, stream) != file.size) fail("cannot read %s", path);
    fclose(stream);
    return file;
}

/* --- JSON, as a tree --- */

typedef enum { OBJECT, ARRAY, STRING, NUMBER, LITERAL } Kind;

typedef struct Json {
    Kind kind;
    char *key;  /* of a member of an object */
    char *text; /* of a string; the digits of a number; true, false, null */
    struct Json *child, *next;
} Json;

typedef struct {
    const char *at, *end, *file;
} Cursor;

static void skip_space(Cursor *cursor) {
    while (cursor->at < cursor->end && *cursor->at && strchr(" \t\r\n", *cursor->at)) cursor->at++;
}

static char peek(Cursor *cursor) {
    skip_space(cursor);
    if (cursor->at == cursor->end) fail("%s: the JSON ends too early", cursor->file);
    return *cursor->at;
}

static void expect(Cursor *cursor, char wanted) {
    if (peek(cursor) != wanted) fail("%s: the JSON must have '%c'; got '%c'", cursor->file, wanted, *cursor->at);
    cursor->at++;
}

static char escaped(Cursor *cursor) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char name = cursor->at < cursor->end ? *cursor->at++ : 0;
    const char *found = name ? strchr(names, name) : NULL;
    if (!found) fail("%s: the escape \\%c in a JSON string is not supported", cursor->file, name);
    return values[found - names];
}

static char *parse_string(Cursor *cursor) {
    expect(cursor, '"');
    char *text = allocate((size_t)(cursor->end - cursor->at) + 1), *to = text;
    while (cursor->at < cursor->end && *cursor->at != '"') {
        char letter = *cursor->at++;
        *to++ = letter == '\\' ? escaped(cursor) : letter;
    }
    expect(cursor, '"');
    return realloc(text, (size_t)(to - text) + 1);
}

static Json *parse(Cursor *cursor);

static void parse_members(Cursor *cursor, Json *parent, char close) {
    Json **last = &parent->child;
    cursor->at++;
    while (peek(cursor) != close) {
        if (parent->child) expect(cursor, ',');
        char *key = NULL;
        if (parent->kind == OBJECT) {
            skip_space(cursor);
            key = parse_string(cursor);
            expect(cursor, ':');
        }
        *last = parse(cursor);
        (*last)->key = key;
        last = &(*last)->next;
    }
    cursor->at++;
}

static Json *parse(Cursor *cursor) {
    Json *node = allocate(sizeof *node);
    char first = peek(cursor);
    if (first == '{' || first == '[') {
        node->kind = first == '{' ? OBJECT : ARRAY;
        parse_members(cursor, node, first == '{' ? '}' : ']');
    } else if (first == '"') {
        node->kind = STRING;
        node->text = parse_string(cursor);
    } else {
        size_t length = strspn(cursor->at, "+-.0123456789abcdefghijklmnopqrstuvwxyzEINy");
        if (!length) fail("%s: the JSON has '%c' where a value must stand", cursor->file, first);
        node->text = allocate(length + 1);
        memcpy(node->text, cursor->at, length);
        cursor->at += length;
        const char *text = node->text;
        node->kind = !strcmp(text, "true") || !strcmp(text, "false") || !strcmp(text, "null") ? LITERAL : NUMBER;
    }
    return node;
}

static Json *parse_all(const char *text, size_t size, const char *file) {
    Cursor cursor = {text, text + size, file};
    Json *root = parse(&cursor);
    skip_space(&cursor);
    if (cursor.at != cursor.end) fail("%s: something stands behind the JSON", file);
    return root;
}

static const Json *member(const Json *object, const char *key, Kind kind, const char *file) {
    for (const Json *node = object->child; node; node = node->next)
        if (node->key && !strcmp(node->key, key)) {
            if (node->kind != kind) fail("%s: %s is of the wrong kind", file, key);
            return node;
        }
    fail("%s: %s is missing", file, key);
    return NULL;
}

static double number(const Json *node, const char *file) {
    char *end;
    double value = node->kind == NUMBER ? strtod(node->text, &end) : 0;
    if (node->kind != NUMBER || *end || !isfinite(value)) fail("%s: a number must stand where %s stands", file, node->text ? node->text : "{ or [");
    return value;
}

/* --- safetensors: the length of a JSON header, the header, the bytes --- */

enum { MAX_AXES = 8 };

typedef struct {
    int wide; /* float64, otherwise float32 */
    size_t axes, shape[MAX_AXES], count;
    const char *bytes;
} Tensor;

static size_t natural(const Json *node, const char *file) {
    double value = number(node, file);
    if (value < 0 || value > 1e15 || value != floor(value)) fail("%s: a size or an offset must be a natural number; got %s", file, node->text);
    return (size_t)value;
}

static uint64_t header_size(const File *file, const char *path) {
    uint64_t size = 0;
    if (file->size < 8) fail("%s: too short for a safetensors file", path);
    for (int byte = 7; byte >= 0; byte--) size = size << 8 | (unsigned char)file->bytes[byte];
    if (size > file->size - 8) fail("%s: the header is longer than the file", path);
    return size;
}

static Tensor tensor(const File *file, const Json *header, const char *name, const char *path) {
    const Json *entry = member(header, name, OBJECT, path);
    const char *dtype = member(entry, "dtype", STRING, path)->text;
    if (strcmp(dtype, "F64") && strcmp(dtype, "F32")) fail("%s: %s must be F64 or F32; got %s", path, name, dtype);
    Tensor result = {.wide = !strcmp(dtype, "F64"), .count = 1};
    for (const Json *size = member(entry, "shape", ARRAY, path)->child; size; size = size->next) {
        if (result.axes == MAX_AXES) fail("%s: %s has more than %d axes", path, name, MAX_AXES);
        result.shape[result.axes++] = natural(size, path);
        result.count *= natural(size, path);
        if (result.count > file->size) fail("%s: %s is larger than the file", path, name);
    }
    const Json *offset = member(entry, "data_offsets", ARRAY, path)->child;
    if (!offset || !offset->next) fail("%s: %s must have two offsets", path, name);
    size_t begin = natural(offset, path), end = natural(offset->next, path), start = 8 + header_size(file, path);
    if (end < begin || end - begin != result.count * (result.wide ? 8 : 4) || end > file->size - start)
        fail("%s: the offsets of %s do not fit its shape", path, name);
    result.bytes = file->bytes + start + begin;
    return result;
}

/* The element as a double. Safetensors are little-endian, and so is every machine that this is meant for. */
static double element(const Tensor *tensor, size_t index) {
    double wide;
    float narrow;
    if (!tensor->wide) {
        memcpy(&narrow, tensor->bytes + 4 * index, 4);
        return narrow;
    }
    memcpy(&wide, tensor->bytes + 8 * index, 8);
    return wide;
}

static void write_output(const char *path, const Tensor *like, const double *values) {
    char header[512], shape[200] = "";
    for (size_t axis = 0; axis < like->axes; axis++)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%zu", axis ? "," : "", like->shape[axis]);
    size_t item = like->wide ? 8 : 4;
    int length = snprintf(header, sizeof header, "{\"output\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[0,%zu]}}",
                          like->wide ? "F64" : "F32", shape, like->count * item);
    unsigned char size[8] = {(unsigned char)length, (unsigned char)(length >> 8)};
    FILE *stream = fopen(path, "wb");
    if (!stream) fail("cannot write %s: %s", path, strerror(errno));
    size_t written = fwrite(size, 1, 8, stream) + fwrite(header, 1, (size_t)length, stream);
    for (size_t index = 0; index < like->count; index++) {
        float narrow = (float)values[index];
        written += like->wide ? fwrite(&values[index], 1, 8, stream) : fwrite(&narrow, 1, 4, stream);
    }
    if (fclose(stream) || written != 8 + (size_t)length + like->count * item) fail("cannot write %s", path);
}

/* --- the component --- */

/* y = scale (x - mean) / sqrt(variance + epsilon) + offset, over the last axis; both dtypes in double, rounded once at the end */
static void layer_norm(const Tensor *x, const Tensor *scale, const Tensor *offset, double epsilon, double *y) {
    size_t width = scale->count;
    for (size_t row = 0; row < x->count; row += width) {
        double sum = 0, squares = 0;
        for (size_t i = 0; i < width; i++) sum += element(x, row + i);
        double mean = sum / (double)width;
        for (size_t i = 0; i < width; i++) squares += pow(element(x, row + i) - mean, 2);
        double deviation = sqrt(squares / (double)width + epsilon);
        for (size_t i = 0; i < width; i++)
            y[row + i] = element(scale, i) * ((element(x, row + i) - mean) / deviation) + element(offset, i);
    }
}

static void answer_layer_norm(const char *path, double epsilon, const char *answer) {
    File file = read_file(path);
    Json *header = parse_all(file.bytes + 8, header_size(&file, path), path);
    Tensor x = tensor(&file, header, "inputs.x_btd", path);
    Tensor scale = tensor(&file, header, "parameters.scale", path);
    Tensor offset = tensor(&file, header, "parameters.offset", path);
    if (!x.axes || !scale.count || x.shape[x.axes - 1] != scale.count || scale.count != offset.count)
        fail("%s: scale and offset must be as long as the last axis of x", path);
    double *y = allocate(x.count * sizeof *y);
    layer_norm(&x, &scale, &offset, epsilon, y);
    write_output(answer, &x, y);
    free(y);
    free(file.bytes);
}

static void answer_not_covered(char *answer, const char *component, const char *dtype) {
    char *end = strstr(answer, ".safetensors");
    if (!end) fail("the outputs of a case must be a .safetensors file; got %s", answer);
    strcpy(end, ".json");
    FILE *stream = fopen(answer, "w");
    if (!stream) fail("cannot write %s: %s", answer, strerror(errno));
    fprintf(stream, "{\"not covered\": \"layer_norm in float64 and float32, not %s in %s\"}\n", component, dtype);
    if (fclose(stream)) fail("cannot write %s", answer);
}

int main(int count, char **arguments) {
    if (count == 2 && !strcmp(arguments[1], "--describe")) {
        puts("{\"components\": [\"layer_norm\"], \"dtypes\": [\"float64\", \"float32\"],"
             " \"config\": {\"norm_offset\": true, \"norm_one_plus_scale\": false}}");
        return 0;
    }
    if (count != 3) fail("usage: layer_norm --describe, or layer_norm CASES OUTPUTS");
    char *manifest = join(arguments[1], "manifest.json");
    File file = read_file(manifest);
    Json *root = parse_all(file.bytes, file.size, manifest);
    for (const Json *row = member(root, "cases", ARRAY, manifest)->child; row; row = row->next) {
        const char *component = member(row, "component", STRING, manifest)->text, *dtype = member(row, "dtype", STRING, manifest)->text;
        char *answer = join(arguments[2], member(row, "outputs", STRING, manifest)->text);
        if (strcmp(component, "layer_norm") || (strcmp(dtype, "float64") && strcmp(dtype, "float32"))) {
            answer_not_covered(answer, component, dtype);
            continue;
        }
        const Json *inputs = member(row, "inputs", OBJECT, manifest);
        if (inputs->child) fail("%s: layer_norm takes no plain input; got %s", manifest, inputs->child->key);
        double epsilon = number(member(member(row, "config", OBJECT, manifest), "epsilon", NUMBER, manifest), manifest);
        answer_layer_norm(join(arguments[1], member(row, "file", STRING, manifest)->text), epsilon, answer);
    }
    return 0;
}
