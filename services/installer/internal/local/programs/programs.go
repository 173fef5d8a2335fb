// Package programs finds the binaries that a mesh is made of.
package programs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Finder looks for programs in --bin-dir, beside this one, and in PATH.
type Finder struct {
	// Executable is this program's path.
	Executable string
	// BinDir is searched first; empty means only the executable's directory.
	BinDir string
	// Getenv reads the environment.
	Getenv func(string) string
}

// NotFoundError says that a program is missing.
type NotFoundError struct {
	Program  string
	Searched []string
	Remedy   string
}

// Error implements error.
func (e *NotFoundError) Error() string {
	return fmt.Sprintf("program %s was not found in %s; %s", e.Program, strings.Join(e.Searched, ", "), e.Remedy)
}

func (f Finder) dirs() []string {
	var dirs []string
	if f.BinDir != "" {
		dirs = append(dirs, f.BinDir)
	}
	return append(dirs, filepath.Dir(f.Executable))
}

// Program finds a program by its name. An absolute path stands for itself; any other name is looked for in --bin-dir,
// beside this program and, if it holds no slash, in PATH.
func (f Finder) Program(name string) (string, error) {
	if filepath.IsAbs(name) {
		if executable(name) {
			return name, nil
		}
		return "", &NotFoundError{Program: name, Searched: []string{filepath.Dir(name)}, Remedy: "build it, or correct the path"}
	}
	dirs := f.dirs()
	for _, dir := range dirs {
		if path := filepath.Join(dir, name); executable(path) {
			return filepath.Abs(path)
		}
	}
	if !strings.ContainsRune(name, filepath.Separator) {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.Abs(path)
		}
		dirs = append(dirs, "PATH")
	}
	return "", &NotFoundError{Program: name, Searched: dirs, Remedy: "build it with `make build`, or name its directory with --bin-dir"}
}

// Envoy finds Envoy: the given path, $ENVOY, beside the programs, in .tools of the directory above them, in PATH.
func (f Finder) Envoy(given string) (string, error) {
	const remedy = "run `make tools`, or name an Envoy with --envoy or ENVOY"
	for source, path := range map[string]string{"--envoy": given, "ENVOY": f.Getenv("ENVOY")} {
		if path == "" || source == "ENVOY" && given != "" {
			continue
		}
		if !executable(path) {
			return "", &NotFoundError{Program: path + " (" + source + ")", Searched: []string{filepath.Dir(path)}, Remedy: remedy}
		}
		return filepath.Abs(path)
	}
	var searched []string
	for _, dir := range f.dirs() {
		for _, d := range []string{dir, filepath.Join(dir, "..", ".tools"), filepath.Join(dir, "..", ".tools", "bin")} {
			searched = append(searched, filepath.Clean(d))
			if path := filepath.Join(d, "envoy"); executable(path) {
				return filepath.Abs(path)
			}
		}
	}
	if path, err := exec.LookPath("envoy"); err == nil {
		return filepath.Abs(path)
	}
	return "", &NotFoundError{Program: "envoy", Searched: append(searched, "PATH"), Remedy: remedy}
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// BaseEnv is what processes inherit of this one's environment: what programs need to work on the machine, and nothing
// that would lead their traffic elsewhere.
func BaseEnv(getenv func(string) string) []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR"} {
		if v := getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}
