package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// program holds fields of an ELF header.
type program struct {
	arch        string
	interpreter string
	needed      []string
}

// architectures has, by ELF machine, the name in image configurations and where Debian and Red Hat keep libraries.
var architectures = map[elf.Machine]struct {
	name string
	dirs []string
}{
	elf.EM_X86_64:  {"amd64", []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64"}},
	elf.EM_AARCH64: {"arm64", []string{"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64"}},
}

var errNotELF = errors.New("is not a Linux executable")

func inspect(data []byte) (program, error) {
	file, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return program{}, errNotELF
	}
	defer func() { _ = file.Close() }()
	arch, ok := architectures[file.Machine]
	if !ok {
		return program{}, fmt.Errorf("is for %s; images are made for amd64 and arm64", file.Machine)
	}
	p := program{arch: arch.name}
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			text := make([]byte, segment.Filesz)
			if _, err := segment.ReadAt(text, 0); err != nil {
				return program{}, fmt.Errorf("interpreter: %w", err)
			}
			p.interpreter = strings.TrimRight(string(text), "\x00")
		}
	}
	if file.Section(".dynamic") != nil {
		if p.needed, err = file.ImportedLibraries(); err != nil {
			return program{}, fmt.Errorf("needed libraries: %w", err)
		}
	}
	return p, nil
}

// librariesOf lists the loader and every library that it will load, sorted; nothing for a static executable.
func librariesOf(host string, data []byte, arch string) ([]string, error) {
	main, err := inspect(data)
	if errors.Is(err, errNotELF) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", host, err)
	}
	if main.arch != arch {
		return nil, fmt.Errorf("%s is for %s, the image for %s", host, main.arch, arch)
	}
	if main.interpreter == "" {
		return nil, nil
	}
	found := map[string]string{filepath.Base(main.interpreter): main.interpreter}
	for queue := main.needed; len(queue) > 0; {
		name := queue[0]
		queue = queue[1:]
		if _, ok := found[name]; ok {
			continue
		}
		path, more, err := findLibrary(name, arch)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", host, err)
		}
		found[name] = path
		queue = append(queue, more...)
	}
	var paths []string
	for _, p := range found {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	return paths, nil
}

// findLibrary searches as the loader does without its cache, which the images do not have.
func findLibrary(name, arch string) (path string, needed []string, err error) {
	for _, machine := range architectures {
		if machine.name != arch {
			continue
		}
		for _, dir := range machine.dirs {
			path := filepath.Join(dir, name)
			data, err := os.ReadFile(path)
			if err != nil {
				continue
			}
			if p, err := inspect(data); err == nil && p.arch == arch {
				return path, p.needed, nil
			}
		}
	}
	return "", nil, fmt.Errorf("library %s for %s is not on this machine; install the package that has it", name, arch)
}
