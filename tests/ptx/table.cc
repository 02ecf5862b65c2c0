/*
 * Finds the translated kernel of a host function: the symbol table of its library has its name, and the file from which
 * it was compiled, because two files may have a kernel of one name in their anonymous namespaces.
 */
#include "run.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <string>

namespace ptx {

static module *modules;

module::module(const char *file_, const kernel *kernels_, size_t n_)
    : file(file_), kernels(kernels_), n(n_), next(modules)
{
    modules = this;
}

using names = std::map<std::string, const kernel *>; /* by "file:symbol", and ":symbol" for those common to all files */
using functions = std::map<const void *, const kernel *>;

static names all_names()
{
    names all;
    for (const module *m = modules; m; m = m->next)
        for (size_t i = 0; i < m->n; i++) {
            const std::string name = m->kernels[i].name;
            const bool local = name.find("_GLOBAL__N_") != std::string::npos;
            all[(local ? m->file : std::string()) + ":" + name] = &m->kernels[i];
        }
    return all;
}

template <typename T> static const T *at(const char *file, size_t offset)
{
    return reinterpret_cast<const T *>(file + offset);
}

/* A file's local symbols follow the symbol of its name. */
static void read_symbols(const char *file, uintptr_t load, const names &all, functions *found)
{
    const Elf64_Ehdr *const e = at<Elf64_Ehdr>(file, 0);
    const Elf64_Shdr *const sections = at<Elf64_Shdr>(file, e->e_shoff);
    for (unsigned s = 0; s < e->e_shnum; s++) {
        if (sections[s].sh_type != SHT_SYMTAB) continue;
        const char *const text = file + sections[sections[s].sh_link].sh_offset;
        std::string source;
        for (size_t i = 0; i < sections[s].sh_size / sizeof(Elf64_Sym); i++) {
            const Elf64_Sym *const sym = at<Elf64_Sym>(file, sections[s].sh_offset) + i;
            const char *const name = text + sym->st_name;
            if (ELF64_ST_TYPE(sym->st_info) == STT_FILE) source = std::string(name, strcspn(name, "."));
            if (ELF64_ST_TYPE(sym->st_info) != STT_FUNC) continue;
            const bool local = ELF64_ST_BIND(sym->st_info) == STB_LOCAL;
            const auto k = all.find((local ? source : std::string()) + ":" + name);
            if (k != all.end()) (*found)[reinterpret_cast<const void *>(load + sym->st_value)] = k->second;
        }
    }
}

struct search {
    names all;
    functions found;
};

/* One of the program's loaded objects. The first is the program itself, and has no name. */
static int read_object(struct dl_phdr_info *info, size_t, void *to)
{
    search *const s = static_cast<search *>(to);
    const int fd = open(info->dlpi_name[0] ? info->dlpi_name : "/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0) return 0; /* the vDSO has no file */
    if (fstat(fd, &st) == 0 && st.st_size > 0) {
        const size_t size = static_cast<size_t>(st.st_size);
        void *const file = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (file != MAP_FAILED) {
            read_symbols(static_cast<const char *>(file), info->dlpi_addr, s->all, &s->found);
            munmap(file, size);
        }
    }
    close(fd);
    return 0;
}

static functions all_functions()
{
    search s = { all_names(), {} };
    dl_iterate_phdr(read_object, &s);
    return s.found;
}

const kernel *find(const void *function)
{
    static const functions all = all_functions();
    const auto k = all.find(function);
    return k == all.end() ? nullptr : k->second;
}

} // namespace ptx
