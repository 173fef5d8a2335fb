package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// buildHello compiles the test's binary for an architecture.
func buildHello(t *testing.T, arch string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "hello")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", out, "./testdata/hello")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

func image(t *testing.T, epoch string, args ...string) (string, error) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.tar")
	env := func(name string) string {
		if name == "SOURCE_DATE_EPOCH" {
			return epoch
		}
		return ""
	}
	var text bytes.Buffer
	err := run(append([]string{"-out", out}, args...), env, &text, &text)
	return out, err
}

func mustImage(t *testing.T, epoch string, args ...string) string {
	t.Helper()
	out, err := image(t, epoch, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// untar returns all entries of a tar.
func untar(t *testing.T, data []byte) (headers map[string]*tar.Header, contents map[string][]byte) {
	t.Helper()
	headers, contents = map[string]*tar.Header{}, map[string][]byte{}
	for in := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return headers, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		headers[h.Name] = h
		if contents[h.Name], err = io.ReadAll(in); err != nil {
			t.Fatal(err)
		}
	}
}

// open reads an archive as a container runtime does, and checks every digest in it.
func open(t *testing.T, path string) (tarball.Manifest, *v1.ConfigFile, map[string]*tar.Header, map[string][]byte) {
	t.Helper()
	list, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(path) })
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(image); err != nil {
		t.Error(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	layer, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	data, err := io.ReadAll(layer)
	if err != nil {
		t.Fatal(err)
	}
	headers, contents := untar(t, data)
	return list, config, headers, contents
}

func TestImageOfAStaticBinary(t *testing.T) {
	binary := buildHello(t, "amd64")
	list, config, headers, contents := open(t, mustImage(t, "1700000000", "-binary", binary, "-name", "fairlead/hello:dev", "-arg", "greet",
		"-arg", "--name=x y"))
	if strings.Join(list[0].RepoTags, " ") != "fairlead/hello:dev" {
		t.Errorf("tags %v", list[0].RepoTags)
	}
	if config.OS != "linux" || config.Architecture != "amd64" || config.Config.User != "1337:1337" ||
		!config.Created.Equal(time.Unix(1700000000, 0)) {
		t.Errorf("configuration %+v", config)
	}
	if strings.Join(config.Config.Entrypoint, " ") != "/usr/local/bin/hello" {
		t.Errorf("entry point %v", config.Config.Entrypoint)
	}
	if want := []string{"greet", "--name=x y"}; !slices.Equal(config.Config.Cmd, want) {
		t.Errorf("arguments %q, want %q", config.Config.Cmd, want)
	}
	want, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(contents["usr/local/bin/hello"], want) || headers["usr/local/bin/hello"].Mode != 0o755 {
		t.Error("the binary is not in the image, executable")
	}
	if tmp := headers["tmp/"]; tmp == nil || tmp.Mode != 0o1777 {
		t.Errorf("/tmp is %+v, want world-writable", tmp)
	}
	for name, h := range headers {
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(time.Unix(1700000000, 0)) {
			t.Errorf("%s belongs to %d:%d and is of %s", name, h.Uid, h.Gid, h.ModTime)
		}
		if parent := filepath.Dir(strings.TrimSuffix(name, "/")); parent != "." && headers[parent+"/"] == nil {
			t.Errorf("%s has no directory", name)
		}
	}
	if len(headers) != 8 {
		t.Errorf("%d entries, want tmp, etc with two files and the path of the binary", len(headers))
	}
}

func TestImageHasTheBinaryUnderAnotherName(t *testing.T) {
	path := mustImage(t, "", "-binary", buildHello(t, "amd64"), "-name", "fairlead/hello:t", "-alias", "salute")
	_, _, headers, _ := open(t, path)
	h := headers["usr/local/bin/salute"]
	if h == nil || h.Typeflag != tar.TypeSymlink || h.Linkname != "hello" || headers["usr/local/bin/hello"] == nil {
		t.Errorf("got %+v", h)
	}
	if _, err := image(t, "", "-binary", "x", "-name", "fairlead/hello:t", "-alias", "../salute"); err == nil {
		t.Error("a name with a directory is accepted")
	}
}

func TestSameInputsSameBytes(t *testing.T) {
	binary := buildHello(t, "amd64")
	read := func(epoch, add string) string {
		data, err := os.ReadFile(mustImage(t, epoch, "-binary", binary, "-name", "fairlead/hello:dev", "-add", add+"=/etc/b", "-add",
			add+"=/etc/a"))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	first := read("", file)
	if err := os.Chtimes(file, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if read("", file) != first {
		t.Error("the archive depends on the files' times")
	}
	if read("1", file) == first {
		t.Error("SOURCE_DATE_EPOCH changes nothing")
	}
}

func TestArchitectureOfTheBinary(t *testing.T) {
	_, config, _, _ := open(t, mustImage(t, "", "-binary", buildHello(t, "arm64"), "-name", "fairlead/hello:dev"))
	if config.Architecture != "arm64" {
		t.Errorf("architecture %s, want arm64", config.Architecture)
	}
}

// A dynamic executable runs with the files of its image alone: the loader is started from the unpacked layer, without
// the machine's cache and libraries.
func TestDynamicExecutableBringsItsLibraries(t *testing.T) {
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash on this machine")
	}
	data, err := os.ReadFile(shell)
	if err != nil {
		t.Fatal(err)
	}
	info, err := inspect(data)
	if err != nil || info.interpreter == "" {
		t.Skipf("bash is no dynamic executable: %v", err)
	}
	_, _, headers, contents := open(t, mustImage(t, "", "-binary", buildHello(t, info.arch), "-name", "fairlead/hello:dev", "-add",
		shell+"=/opt/sh"))
	root := t.TempDir()
	var dirs []string
	for name, h := range headers {
		path := filepath.Join(root, name)
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, contents[name], os.FileMode(h.Mode)); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(name, ".so") {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, info.interpreter), "--inhibit-cache", "--library-path",
		strings.Join(dirs, ":"),
		filepath.Join(root, "opt/sh"), "-c", `while read -r line; do case $line in *.so*) echo "${line##* }" ;; esac; done </proc/$$/maps`)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(out) == 0 {
		t.Fatal("no library is loaded")
	}
	for _, line := range strings.Fields(string(out)) {
		if !strings.HasPrefix(line, root) {
			t.Errorf("%s is loaded from the machine, not from the image", line)
		}
	}
}

func TestRefused(t *testing.T) {
	hello := buildHello(t, "amd64")
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	ok := []string{"-binary", hello, "-name", "fairlead/hello:dev"}
	for name, tc := range map[string]struct {
		args  []string
		says  string
		usage bool
	}{
		"nothing":            {nil, "required", true},
		"no tag":             {[]string{"-binary", hello, "-name", "fairlead/hello"}, "repository:tag", true},
		"latest":             {[]string{"-binary", hello, "-name", "fairlead/hello:latest"}, "another tag", true},
		"upper case":         {[]string{"-binary", hello, "-name", "Fairlead/hello:dev"}, "repository:tag", true},
		"user by name":       {append(ok, "-user", "nobody"), "uid:gid", true},
		"relative path":      {append(ok, "-add", text+"=etc/x"), "host-file", true},
		"path out of it":     {append(ok, "-add", text+"=/../x"), "host-file", true},
		"argument":           {append(ok, "now"), "unexpected", true},
		"script as binary":   {[]string{"-binary", text, "-name", "fairlead/hello:dev"}, "not a Linux executable", false},
		"no such binary":     {[]string{"-binary", text + "x", "-name", "fairlead/hello:dev"}, "no such file", false},
		"no such file":       {append(ok, "-add", text+"x=/etc/x"), "no such file", false},
		"other architecture": {append(ok, "-add", buildHello(t, "arm64")+"=/opt/x"), "is for arm64", false},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := image(t, "", tc.args...)
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want an error with %q", err, tc.says)
			}
			var usage usageError
			if errors.As(err, &usage) != tc.usage {
				t.Errorf("usage error: %v, want %v", !tc.usage, tc.usage)
			}
			if entries, _ := os.ReadDir(filepath.Dir(out)); len(entries) > 0 {
				t.Errorf("left behind: %v", entries)
			}
		})
	}
	if _, err := image(t, "yesterday", ok...); err == nil {
		t.Error("accepted a date that is none")
	}
}

func TestDynamicBinaryIsRefused(t *testing.T) {
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash on this machine")
	}
	if _, err := image(t, "", "-binary", shell, "-name", "fairlead/sh:dev"); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("got %v", err)
	}
}
