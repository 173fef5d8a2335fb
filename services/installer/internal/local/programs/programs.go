// Package programs finds the binaries of a mesh: Finder.Program those of Fairlead and of applications, Finder.Envoy
// Envoy. BaseEnv is the environment that they inherit. Commands of cli that start programs call it.
package programs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Finder searches --bin-dir, the directory of this program, and PATH.
type Finder struct {
	// Executable is this program's path.
	Executable string
	// BinDir is searched first, if set.
	BinDir string
	// Getenv returns a variable of the environment.
	Getenv func(string) string
}

// NotFoundError says where a missing program was searched.
type NotFoundError struct {
	Program  string
	Searched []string
	Remedy   string
}

// Error implements error.
func (e *NotFoundError) Error() string {
	return e.Problem() + "; " + e.Remedy
}

// Problem is the error without its remedy.
func (e *NotFoundError) Problem() string {
	return fmt.Sprintf("program %s was not found in %s", e.Program, strings.Join(e.Searched, ", "))
}

func (f Finder) dirs() []string {
	var dirs []string
	if f.BinDir != "" {
		dirs = append(dirs, f.BinDir)
	}
	return append(dirs, filepath.Dir(f.Executable))
}

// Program returns the absolute path of a program. A name with a slash is searched in the directories but not in PATH;
// an absolute path must be an executable file.
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

// Envoy returns the absolute path of Envoy: given, else $ENVOY, else the first found in the directories of programs, in
// .tools beside them, and in PATH.
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

// BaseEnv returns the variables of this process that programs need on any machine. Proxy settings are not among them:
// they would divert requests.
func BaseEnv(getenv func(string) string) []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR"} {
		if v := getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}
