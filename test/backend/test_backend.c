#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "backend/cpuid.h"

/* The kernel lists a flag only if it also saves the registers: an independent second opinion. */
static bool kernel_lists(const char *flags) {
    char line[8192], word[64];
    bool all = true;
    FILE *file = fopen("/proc/cpuinfo", "r");
    assert_non_null(file);
    do assert_non_null(fgets(line, sizeof line, file));
    while (strncmp(line, "flags", 5) != 0);
    fclose(file);
    line[strcspn(line, "\n")] = ' ';
    for (const char *at = flags; *at; at += strcspn(at, " "), at += *at == ' ') {
        snprintf(word, sizeof word, " %.*s ", (int)strcspn(at, " "), at);
        all = all && strstr(line, word);
    }
    return all;
}

static void cpuid_agrees_with_the_kernel(void **state) {
    (void)state;
    char missing[128];
    assert_true(fl_cpu_has(FL_CPU_NONE, NULL, 0));
    bool avx2 = kernel_lists("avx avx2 fma f16c");
    bool avx512 = avx2 && kernel_lists("avx512f avx512dq avx512bw avx512vl avx512vbmi avx512_bf16");
    assert_int_equal(fl_cpu_has(FL_CPU_AVX2, missing, sizeof missing), avx2);
    assert_int_equal(strlen(missing) == 0, avx2);
    assert_int_equal(fl_cpu_has(FL_CPU_AVX512, missing, sizeof missing), avx512);
    assert_int_equal(strlen(missing) == 0, avx512);
}

static void every_available_backend_opens_and_gives_zeroed_memory(void **state) {
    (void)state;
    for (const char *const *name = fl_backend_names(); *name; name++) {
        fl_backend *be = NULL;
        if (!fl_backend_available(*name)) {
            assert_int_equal(fl_backend_open(*name, 1, &be), FL_ERR_DEVICE);
            continue;
        }
        assert_int_equal(fl_backend_open(*name, 2, &be), FL_ERR_OK);
        assert_string_equal(be->name, *name);
        uint8_t *memory = NULL;
        assert_int_equal(be->alloc(be, 0, (void **)&memory), FL_ERR_INVALID);
        assert_int_equal(be->alloc(be, 100000, (void **)&memory), FL_ERR_OK);
        assert_int_equal((uintptr_t)memory % 64, 0);
        for (int32_t i = 0; i < 100000; i++) assert_int_equal(memory[i], 0);
        memset(memory, 1, 100000);
        be->free(be, memory, 100000);
        be->free(be, NULL, 0);
        fl_backend_close(be);
    }
    fl_backend_close(NULL);
}

static void auto_is_the_first_that_this_cpu_runs(void **state) {
    (void)state;
    fl_backend *be = NULL, *count = NULL;
    assert_true(fl_backend_available("auto"));
    assert_int_equal(fl_backend_open("auto", 1, &be), FL_ERR_OK);
    const char *const *name = fl_backend_names();
    while (!fl_backend_available(*name)) name++;
    assert_string_equal(be->name, *name);
    assert_int_equal(fl_backend_open("count", 0, &count), FL_ERR_OK);
    assert_int_equal(count->act_dtype, be->act_dtype);
    assert_memory_equal(&count->layout, &be->layout, sizeof be->layout);
    fl_backend_close(count);
    fl_backend_close(be);
}

static void unknown_names_are_refused(void **state) {
    (void)state;
    const char *const bad[] = {"", "avx1024", "counter", "count:", "count:none", "reference "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fl_backend *be = NULL;
        assert_false(fl_backend_available(bad[i]));
        assert_int_equal(fl_backend_open(bad[i], 1, &be), FL_ERR_INVALID);
        assert_null(be);
    }
}

static void count_adds_costs_and_touches_nothing(void **state) {
    (void)state;
    fl_backend *be = NULL;
    assert_int_equal(fl_backend_open("count:reference", 0, &be), FL_ERR_OK);
    assert_int_equal(be->layout.dtype, FL_DTYPE_F32);
    assert_true(be->kv_f32);
    fl_weight w = {.n = 8, .k = 4};
    fl_matmul_args matmul = {.w = &w, .n_groups = 1, .rows = 2, .x_stride = 4, .y_stride = 8};
    fl_embed_args embed = {.rows = 3, .dim = 5, .n_vocab = 7};
    assert_int_equal(be->op->matmul(be, &matmul), FL_ERR_OK);
    assert_int_equal(be->op->matmul(be, &matmul), FL_ERR_OK);
    assert_int_equal(be->op->embed(be, &embed), FL_ERR_OK);
    matmul.rows = 0;
    assert_int_equal(be->op->matmul(be, &matmul), FL_ERR_INVALID);
    const fl_count *count = fl_backend_count(be);
    double matmul_bytes = 2 * (8 * 4 * 2 + 2 * (4 * 2 + 8 * 4)), embed_bytes = 3 * (5 * 8 + 4);
    assert_true(count->matmul.flops == 2 * 2 * 2 * 8 * 4);
    assert_true(count->matmul.bytes == matmul_bytes);
    assert_true(count->embed.bytes == embed_bytes);
    assert_true(count->total.bytes == matmul_bytes + embed_bytes);
    assert_true(count->total.flops == count->matmul.flops);
    fl_backend_count_reset(be);
    assert_true(count->total.bytes == 0 && count->matmul.flops == 0);
    void *huge = NULL; /* more than any machine here has: address space only */
    assert_int_equal(be->alloc(be, (int64_t)1 << 42, &huge), FL_ERR_OK);
    be->free(be, huge, (int64_t)1 << 42);
    fl_backend_close(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpuid_agrees_with_the_kernel),
        cmocka_unit_test(every_available_backend_opens_and_gives_zeroed_memory),
        cmocka_unit_test(auto_is_the_first_that_this_cpu_runs),
        cmocka_unit_test(unknown_names_are_refused),
        cmocka_unit_test(count_adds_costs_and_touches_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
