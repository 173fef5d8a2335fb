package programs_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/local/programs"
)

func executable(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestProgram(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", filepath.Join(dir, "path"))
	f := programs.Finder{Executable: executable(t, filepath.Join(dir, "bin", "fairlead")), BinDir: filepath.Join(dir, "mine")}
	beside := executable(t, filepath.Join(dir, "bin", "ca"))
	inPath := executable(t, filepath.Join(dir, "path", "web"))
	if got, err := f.Program("ca"); err != nil || got != beside {
		t.Errorf("ca: %s, %v", got, err)
	}
	mine := executable(t, filepath.Join(dir, "mine", "ca"))
	if got, err := f.Program("ca"); err != nil || got != mine {
		t.Errorf("ca of --bin-dir: %s, %v", got, err)
	}
	if got, err := f.Program("web"); err != nil || got != inPath {
		t.Errorf("web: %s, %v", got, err)
	}
	if got, err := f.Program(beside); err != nil || got != beside {
		t.Errorf("absolute path: %s, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin", "plain"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"nothing", "plain", filepath.Join(dir, "no", "where"), "sub/web"} {
		var missing *programs.NotFoundError
		if _, err := f.Program(name); !errors.As(err, &missing) || !strings.Contains(err.Error(), "--bin-dir") &&
			!strings.Contains(err.Error(), "correct the path") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEnvoy(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", "")
	env := map[string]string{}
	f := programs.Finder{Executable: executable(t, filepath.Join(dir, "bin", "fairlead")), Getenv: func(n string) string { return env[n] }}
	if _, err := f.Envoy(""); err == nil || !strings.Contains(err.Error(), "make tools") {
		t.Errorf("no Envoy: %v", err)
	}
	tools := executable(t, filepath.Join(dir, ".tools", "envoy"))
	if got, err := f.Envoy(""); err != nil || got != tools {
		t.Errorf(".tools: %s, %v", got, err)
	}
	env["ENVOY"] = executable(t, filepath.Join(dir, "other", "envoy"))
	if got, err := f.Envoy(""); err != nil || got != env["ENVOY"] {
		t.Errorf("ENVOY: %s, %v", got, err)
	}
	given := executable(t, filepath.Join(dir, "given"))
	if got, err := f.Envoy(given); err != nil || got != given {
		t.Errorf("--envoy: %s, %v", got, err)
	}
	env["ENVOY"] = filepath.Join(dir, "missing")
	if _, err := f.Envoy(""); err == nil || !strings.Contains(err.Error(), "ENVOY") {
		t.Errorf("wrong ENVOY: %v", err)
	}
	if _, err := f.Envoy(given); err != nil {
		t.Errorf("--envoy wins over a wrong ENVOY: %v", err)
	}
}

func TestBaseEnvLeadsNobodyAstray(t *testing.T) {
	env := programs.BaseEnv(func(n string) string {
		return map[string]string{"PATH": "/bin", "HTTP_PROXY": "http://elsewhere", "AWS_SECRET_ACCESS_KEY": "x", "TZ": ""}[n]
	})
	if !slices.Equal(env, []string{"PATH=/bin"}) {
		t.Errorf("env %v", env)
	}
}
