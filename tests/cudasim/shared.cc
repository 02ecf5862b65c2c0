/*
 * Shared memory. Static arrays are the kernels' function-local statics: the symbol tables of the program and of its
 * libraries have their addresses. A function's arrays are its writable local statics; the name of the mark that
 * `__shared__` adds starts with the same function's name.
 */
#include "cudasim_device.h"
#include "fiber.h"
#include "internal.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#ifdef CUDASIM_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace cudasim {

struct array {
    void *address;
    size_t size;
};

static std::unordered_map<const void *, std::vector<array>> arrays; /* by mark */
static bool scanned;

static const char mark_name[] = "cudasim_mark_";

/* "_ZZ4kernPfE" from "_ZZ4kernPfE14cudasim_mark_0" and from "_ZZ4kernPfE1x"; "" if the name is not that of a local
   static. */
static std::string function_of(const std::string &name, size_t variable)
{
    return name.substr(0, variable);
}

/* The start of a name's last part: a length and so many characters with an optional discriminator. 0 if it has none. */
static size_t last_part(const std::string &name)
{
    for (size_t i = name.size(); i-- > 3;) {
        if (name[i] < '1' || name[i] > '9' || (name[i - 1] >= '0' && name[i - 1] <= '9')) continue;
        size_t length = 0, j = i;
        while (j < name.size() && name[j] >= '0' && name[j] <= '9')
            length = length * 10 + static_cast<size_t>(name[j++] - '0');
        if (j + length > name.size()) continue;
        if (name[i - 1] == 'E' && (j + length == name.size() || name[j + length] == '_')) return i;
    }
    return 0;
}

template <typename T> static const T *at(const char *base, size_t offset)
{
    return reinterpret_cast<const T *>(base + offset);
}

static bool is_variables_section(const std::string &name)
{
    return name == ".bss" || name == ".data" || name.rfind(".bss.", 0) == 0 ||
           (name.rfind(".data.", 0) == 0 && name.rfind(".data.rel.ro", 0) != 0);
}

/* Finds the shared arrays of one file by its symbol table. */
static void scan_symbols(const char *file, uintptr_t load)
{
    const Elf64_Ehdr *e = at<Elf64_Ehdr>(file, 0);
    const Elf64_Shdr *sections = at<Elf64_Shdr>(file, e->e_shoff);
    const char *section_names = file + sections[e->e_shstrndx].sh_offset;
    std::map<std::string, std::vector<array>> by_function;
    std::vector<std::pair<const void *, std::string>> marks;
    for (unsigned s = 0; s < e->e_shnum; s++) {
        if (sections[s].sh_type != SHT_SYMTAB) continue;
        const char *names = file + sections[sections[s].sh_link].sh_offset;
        for (size_t i = 0; i < sections[s].sh_size / sizeof(Elf64_Sym); i++) {
            const Elf64_Sym *sym = at<Elf64_Sym>(file, sections[s].sh_offset) + i;
            if (ELF64_ST_TYPE(sym->st_info) != STT_OBJECT || sym->st_shndx >= e->e_shnum) continue;
            const char *raw = names + sym->st_name;
            if (strncmp(raw, "_ZZ", 3) != 0 || !is_variables_section(section_names + sections[sym->st_shndx].sh_name))
                continue;
            const std::string name = raw;
            const size_t part = last_part(name);
            if (!part) continue;
            void *address = reinterpret_cast<void *>(load + sym->st_value);
            if (name.find(mark_name, part) != std::string::npos) marks.push_back({ address, function_of(name, part) });
            else by_function[function_of(name, part)].push_back({ address, sym->st_size });
        }
    }
    for (const auto &m : marks) arrays[m.first] = by_function[m.second];
}

/* One of the program's loaded objects. */
static int scan_module(struct dl_phdr_info *info, size_t, void *)
{
    const char *path = info->dlpi_name && info->dlpi_name[0] ? info->dlpi_name : "/proc/self/exe";
    if (strncmp(path, "/usr/", 5) == 0 || strncmp(path, "/lib", 4) == 0) return 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0) return 0;
    if (fstat(fd, &st) == 0 && st.st_size > static_cast<off_t>(sizeof(Elf64_Ehdr))) {
        const size_t size = static_cast<size_t>(st.st_size);
        void *file = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (file != MAP_FAILED) {
            if (memcmp(file, ELFMAG, SELFMAG) == 0) scan_symbols(static_cast<const char *>(file), info->dlpi_addr);
            munmap(file, size);
        }
    }
    close(fd);
    return 0;
}

static const size_t dynamic_limit = 227 << 10, guard = 1024;
static const unsigned char guard_byte = 0xfd;
static char *dynamic_region; /* dynamic_limit and a guard on both sides */
static size_t dynamic_bytes;
static bool dynamic_used; /* by this kernel */
static unsigned char pattern;

static void protect(bool on)
{
#ifdef CUDASIM_ASAN
    char *end = dynamic_region + guard + dynamic_bytes;
    __asan_unpoison_memory_region(dynamic_region, dynamic_limit + 2 * guard);
    if (!on) return;
    __asan_poison_memory_region(dynamic_region, guard);
    __asan_poison_memory_region(end, static_cast<size_t>(dynamic_region + dynamic_limit + 2 * guard - end));
#else
    (void)on;
#endif
}

void shared_begin_kernel(size_t bytes)
{
    if (!dynamic_region) {
        dynamic_region = static_cast<char *>(aligned_alloc(1024, dynamic_limit + 3 * guard));
        if (!dynamic_region) abort();
        dynamic_region += 16; /* detects code that relies on more than the alignment that the device promises */
    }
    if (!scanned) dl_iterate_phdr(scan_module, nullptr);
    scanned = true;
    protect(false);
    dynamic_bytes = bytes;
    dynamic_used = false;
    memset(dynamic_region, guard_byte, guard);
    memset(dynamic_region + guard + bytes, guard_byte, guard);
    protect(true);
}

/* Three patterns: NaN, a negative number, a very large one; as integers -1, negative, positive. */
void shared_begin_block()
{
    static const unsigned char patterns[] = { 0xff, 0xcb, 0x7e };
    pattern = patterns[random_below(sizeof patterns)];
    memset(dynamic_region + guard, pattern, dynamic_bytes);
}

void enter_shared(shared_mark *mark)
{
    mark->serial = block_serial;
    const auto found = arrays.find(mark);
    if (found == arrays.end()) {
        report("the symbol table has no shared memory for a mark: the program must not be stripped");
        return;
    }
    for (const array &a : found->second) memset(a.address, pattern, a.size);
}

const char *shared_check()
{
#ifndef CUDASIM_ASAN
    for (size_t i = 0; i < guard && dynamic_used; i++) {
        if (static_cast<unsigned char>(dynamic_region[i]) != guard_byte)
            return "wrote in front of dynamic shared memory";
        if (static_cast<unsigned char>(dynamic_region[guard + dynamic_bytes + i]) != guard_byte)
            return "wrote behind dynamic shared memory";
    }
#endif
    return nullptr;
}

void *dynamic_shared()
{
    dynamic_used = true;
    return dynamic_region + guard;
}

} // namespace cudasim
