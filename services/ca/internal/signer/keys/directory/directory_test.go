package directory

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/keys/keystest"
)

// Variables by which the test's own program, started again, makes a key in a directory and is killed at a step.
const (
	dirVariable  = "KEYS_DIRECTORY_TEST_DIR"
	nameVariable = "KEYS_DIRECTORY_TEST_NAME"
	killVariable = "KEYS_DIRECTORY_TEST_KILL"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(dirVariable); dir != "" {
		child(dir)
		return
	}
	os.Exit(m.Run())
}

// child makes a key and says so. If the environment names a step, the process kills itself before that.
func child(dir string) {
	keys := New(Config{Dir: dir})
	keys.fs.Fault = func(step fileio.Step, _ string) error {
		if string(step) == os.Getenv(killVariable) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	}
	name := os.Getenv(nameVariable)
	var err error
	if strings.HasPrefix(name, "-") {
		err = keys.Delete(context.Background(), name[1:])
	} else {
		_, err = keys.Make(context.Background(), name, signer.ECDSAP256)
	}
	fmt.Println(err)
}

func start(t *testing.T, dir, name string, kill fileio.Step) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0])
	command.Env = append(os.Environ(), dirVariable+"="+dir, nameVariable+"="+name, killVariable+"="+string(kill))
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	_ = command.Wait()
	return strings.TrimSpace(line)
}

func TestContract(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	keystest.Contract(t, keystest.Subject{Open: func(testing.TB) signer.KeyManager { return New(Config{Dir: dir}) }})
}

func TestProcessesMakeOneKey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	var wg sync.WaitGroup
	var mu sync.Mutex
	said := map[string]int{}
	for range 6 {
		wg.Go(func() {
			line := start(t, dir, "root", "")
			mu.Lock()
			defer mu.Unlock()
			said[line]++
		})
	}
	wg.Wait()
	exists := fmt.Errorf("%s: %w", filepath.Join(dir, "root.pem"), signer.ErrKeyExists).Error()
	if said["<nil>"] != 1 || said[exists] != 5 {
		t.Errorf("they said %v", said)
	}
}

// A process that is killed leaves a key whole or absent, and nothing that stops the next.
func TestKilledAtEveryStep(t *testing.T) {
	made := []fileio.Step{fileio.StepCreate, fileio.StepWrite, fileio.StepSync, fileio.StepRename, fileio.StepDir}
	for _, step := range made {
		t.Run("make: "+string(step), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "keys")
			if said := start(t, dir, "root", step); said != "" {
				t.Fatalf("was not killed: %s", said)
			}
			keys := New(Config{Dir: dir})
			_, err := keys.Find(t.Context(), "root")
			switch {
			case step == fileio.StepDir && err != nil:
				t.Errorf("the key has its name and is not found: %v", err)
			case step != fileio.StepDir && !errors.Is(err, signer.ErrNoKey):
				t.Errorf("got %v", err)
			}
			if _, err := keys.Make(t.Context(), "next", signer.ECDSAP256); err != nil {
				t.Error(err)
			}
			wantFiles(t, dir)
		})
	}
	for _, step := range []fileio.Step{fileio.StepRemove, fileio.StepDir} {
		t.Run("delete: "+string(step), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "keys")
			keys := New(Config{Dir: dir})
			if _, err := keys.Make(t.Context(), "root", signer.ECDSAP256); err != nil {
				t.Fatal(err)
			}
			if said := start(t, dir, "-root", step); said != "" {
				t.Fatalf("was not killed: %s", said)
			}
			if _, err := keys.Find(t.Context(), "root"); (err == nil) != (step == fileio.StepRemove) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A step that fails makes no key, says which file, and leaves nothing behind.
func TestFullDisk(t *testing.T) {
	for _, step := range []fileio.Step{fileio.StepCreate, fileio.StepWrite, fileio.StepSync, fileio.StepRename} {
		dir := filepath.Join(t.TempDir(), "keys")
		keys := New(Config{Dir: dir})
		keys.fs.Fault = func(s fileio.Step, _ string) error {
			if s == step {
				return syscall.ENOSPC
			}
			return nil
		}
		_, err := keys.Make(t.Context(), "root", signer.ECDSAP256)
		if !fileio.Exhausted(err) || !strings.Contains(err.Error(), filepath.Join(dir, "root.pem")) {
			t.Errorf("%s: %v", step, err)
		}
		if _, err := keys.Find(t.Context(), "root"); !errors.Is(err, signer.ErrNoKey) {
			t.Errorf("%s: %v", step, err)
		}
		wantFiles(t, dir)
	}
}

// wantFiles checks that the directory has keys and the lock alone, closed to others.
func wantFiles(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s has mode %v, %v", e.Name(), info.Mode(), err)
		}
		if e.Name() != lockName && !strings.HasSuffix(e.Name(), ".pem") {
			t.Errorf("left behind: %s", e.Name())
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v, %v", info.Mode(), err)
	}
}

func TestFindRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(dir, file string) error
		says   string
	}{
		"a readable file":      {func(_, f string) error { return os.Chmod(f, 0o640) }, "run: chmod 0600 "},
		"an open directory":    {func(d, _ string) error { return os.Chmod(d, 0o755) }, "run: chmod 0700 "}, //nolint:gosec // refused
		"a link":               {func(_, f string) error { return errors.Join(os.Rename(f, f+"x"), os.Symlink(f+"x", f)) }, "symbolic link"},
		"a directory":          {func(_, f string) error { return errors.Join(os.Remove(f), os.Mkdir(f, 0o700)) }, "regular file"},
		"half a key":           {func(_, f string) error { return os.Truncate(f, 60) }, "restore the file"},
		"an empty file":        {func(_, f string) error { return os.Truncate(f, 0) }, "restore the file"},
		"a huge file":          {func(_, f string) error { return os.Truncate(f, 1<<20) }, "too large"},
		"a file as directory":  {func(d, _ string) error { return errors.Join(os.RemoveAll(d), os.WriteFile(d, nil, 0o600)) }, "not a directory"},
		"a pipe that is empty": {func(_, f string) error { return errors.Join(os.Remove(f), syscall.Mkfifo(f, 0o600)) }, "regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "keys")
			keys := New(Config{Dir: dir})
			if _, err := keys.Make(t.Context(), "root", signer.ECDSAP256); err != nil {
				t.Fatal(err)
			}
			if err := tc.change(dir, filepath.Join(dir, "root.pem")); err != nil {
				t.Fatal(err)
			}
			_, err := keys.Find(t.Context(), "root")
			if err == nil || errors.Is(err, signer.ErrNoKey) || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %v, want an error with %q", err, tc.says)
			}
			if _, err := keys.Make(t.Context(), "root", signer.ECDSAP256); err == nil {
				t.Error("another key was made in its place")
			}
		})
	}
}

func TestConfigCheck(t *testing.T) {
	for dir, says := range map[string]string{"": "is required", "keys": "whole path", "/keys": ""} {
		err := (&Config{Dir: dir}).Check()
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", dir, err)
		}
	}
	parent := filepath.Join(t.TempDir(), "a", "b")
	if _, err := New(Config{Dir: parent}).Make(t.Context(), "root", signer.ECDSAP256); err == nil || !strings.Contains(err.Error(), "parent") {
		t.Errorf("got %v", err)
	}
}
