/* Layer normalization in float64 and float32 as a port that is a command: nothing but the C library.
 *
 *     cc -O2 -o layer_norm layer_norm.c -lm
 *     rosettaformer check --command ./layer_norm
 *
 * `layer_norm --describe` says what it covers. `layer_norm CASES OUTPUTS` reads CASES/manifest.json and answers every case in it
 * by a file in OUTPUTS. Whatever it does not understand ends it with a message and exit status 1. */

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
    void *memory = calloc(size + 1, 1);
    if (!memory) fail("out of memory for %zu bytes", size);
    return memory;
}

static char *join(const char *folder, const char *name) {
    char *path = allocate(strlen(folder) + strlen(name) + 1);
    sprintf(path, "%s/%s", folder, name);
    return path;
}

/* The bytes of a file, behind which a zero stands. */
static char *read_file(const char *path, size_t *size) {
    FILE *stream = fopen(path, "rb");
    long end = stream && !fseek(stream, 0, SEEK_END) ? ftell(stream) : -1;
    if (end < 0) fail("cannot read %s", path);
    rewind(stream);
    char *bytes = allocate((size_t)end);
    *size = fread(bytes, 1, (size_t)end, stream);
    if (*size != (size_t)end) fail("cannot read %s", path);
    fclose(stream);
    return bytes;
}

/* --- JSON: a value is where its text begins; what separates values is skipped --- */

static const char *skip(const char *at) {
    return at + strspn(at, " \t\r\n,:");
}

/* Where the text of the value ends. */
static const char *after(const char *at) {
    if (*at == '{' || *at == '[') {
        for (at = skip(at + 1); *at && !strchr("]}", *at);) at = skip(after(at));
    } else if (*at == '"') {
        for (at++; *at && *at != '"'; at++)
            if (*at == '\\') fail("the escape %.2s in a JSON string is not supported", at);
    } else {
        return at + strcspn(at, " \t\r\n,:]}");
    }
    if (!*at) fail("the JSON ends too early");
    return at + 1;
}

/* The first value within an object '{' or an array '['. */
static const char *within(const char *value, char kind) {
    if (*value != kind) fail("the JSON must have '%c'; got %.9s", kind, *value ? value : "its end");
    return skip(value + 1);
}

static const char *member(const char *object, const char *key) {
    size_t length = strlen(key);
    for (const char *at = within(object, '{'); *at == '"'; at = skip(after(skip(after(at)))))
        if (after(at) == at + length + 2 && !memcmp(at + 1, key, length)) return skip(after(at));
    fail("%s is missing", key);
    return NULL;
}

static char *string(const char *value) {
    within(value, '"');
    size_t size = (size_t)(after(value) - value) - 2;
    return memcpy(allocate(size), value + 1, size);
}

static double number(const char *value) {
    char *end;
    double found = strtod(value, &end);
    if (end == value || !isfinite(found)) fail("a number must stand where %.9s stands", value);
    return found;
}

/* --- safetensors: the length of a JSON header, the header, the bytes --- */

typedef struct {
    size_t item, width, count; /* item: bytes of an element, 8 of float64 and 4 of float32 */
    char *shape;
    const char *bytes;
} Tensor;

static Tensor tensor(const char *file, size_t size, const char *name) {
    uint64_t header;
    if (size < sizeof header) fail("%s is in a file that is too short", name);
    memcpy(&header, file, sizeof header); /* little-endian, as every machine that this is meant for */
    const char *entry = member(file + 8, name), *axes = member(entry, "shape"), *at;
    char *dtype = string(member(entry, "dtype"));
    if (strcmp(dtype, "F64") && strcmp(dtype, "F32")) fail("%s must be F64 or F32; got %s", name, dtype);
    size_t length = (size_t)(after(axes) - axes);
    Tensor result = {.item = strcmp(dtype, "F64") ? 4 : 8, .width = 1, .count = 1};
    result.shape = memcpy(allocate(length), axes, length);
    for (at = within(axes, '['); *at != ']'; at = skip(after(at))) {
        result.width = (size_t)number(at);
        result.count *= result.width;
        if (result.count > size) fail("%s is larger than its file", name);
    }
    at = within(member(entry, "data_offsets"), '[');
    double begin = number(at), end = number(skip(after(at))), room = (double)size - 8 - (double)header;
    if (begin < 0 || end > room || end - begin != (double)(result.count * result.item))
        fail("the offsets of %s do not fit", name);
    result.bytes = file + 8 + header + (size_t)begin;
    return result;
}

static double element(const Tensor *tensor, size_t index) {
    double wide;
    float narrow;
    memcpy(tensor->item == 8 ? (void *)&wide : &narrow, tensor->bytes + tensor->item * index, tensor->item);
    return tensor->item == 8 ? wide : narrow;
}

static void write_output(const char *path, const Tensor *like, const double *values) {
    char *header = allocate(strlen(like->shape) + 100);
    uint64_t size = (uint64_t)sprintf(
        header, "{\"output\":{\"dtype\":\"F%zu\",\"shape\":%s,\"data_offsets\":[0,%zu]}}",
        8 * like->item, like->shape, like->count * like->item);
    FILE *stream = fopen(path, "wb");
    if (!stream) fail("cannot write %s", path);
    size_t written = fwrite(&size, 1, 8, stream) + fwrite(header, 1, size, stream);
    for (size_t index = 0; index < like->count; index++) {
        float narrow = (float)values[index];
        written += fwrite(like->item == 8 ? (const void *)&values[index] : &narrow, 1, like->item, stream);
    }
    if (fclose(stream) || written != 8 + size + like->count * like->item) fail("cannot write %s", path);
}

/* --- the component --- */

/* y = scale (x - mean) / sqrt(variance + epsilon) + offset, over the last axis; both dtypes in double, rounded once at the end */
static void layer_norm(const char *path, double epsilon, const char *answer) {
    size_t size;
    char *file = read_file(path, &size);
    Tensor x = tensor(file, size, "inputs.x_btd");
    Tensor scale = tensor(file, size, "parameters.scale"), offset = tensor(file, size, "parameters.offset");
    size_t width = x.width;
    if (scale.count != width || offset.count != width) fail("%s: scale and offset do not fit x", path);
    double *y = allocate(x.count * sizeof *y);
    for (size_t row = 0; row < x.count; row += width) {
        double sum = 0, squares = 0;
        for (size_t i = 0; i < width; i++) sum += element(&x, row + i);
        double mean = sum / (double)width;
        for (size_t i = 0; i < width; i++) squares += pow(element(&x, row + i) - mean, 2);
        double deviation = sqrt(squares / (double)width + epsilon);
        for (size_t i = 0; i < width; i++)
            y[row + i] = element(&scale, i) * (element(&x, row + i) - mean) / deviation + element(&offset, i);
    }
    write_output(answer, &x, y);
}

static void not_covered(char *answer, const char *component, const char *dtype) {
    strcpy(strstr(answer, ".safetensors"), ".json");
    FILE *stream = fopen(answer, "w");
    if (!stream) fail("cannot write %s", answer);
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
    size_t size;
    const char *manifest = read_file(join(arguments[1], "manifest.json"), &size);
    after(manifest); /* it is complete */
    for (const char *row = within(member(manifest, "cases"), '['); *row == '{'; row = skip(after(row))) {
        char *component = string(member(row, "component")), *dtype = string(member(row, "dtype"));
        char *answer = join(arguments[2], string(member(row, "outputs")));
        if (strcmp(component, "layer_norm") || (strcmp(dtype, "float64") && strcmp(dtype, "float32"))) {
            not_covered(answer, component, dtype);
            continue;
        }
        if (*within(member(row, "inputs"), '{') != '}') fail("layer_norm takes no plain input");
        double epsilon = number(member(member(row, "config"), "epsilon"));
        layer_norm(join(arguments[1], string(member(row, "file"))), epsilon, answer);
    }
    return 0;
}
