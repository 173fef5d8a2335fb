package fileio_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"fairlead.dev/pkg/fileio"
)

// version is a set whose files say which one they are of.
func version(content string) map[string][]byte {
	return map[string][]byte{"key.pem": []byte("key " + content), "cert-chain.pem": []byte("chain " + content),
		"root-cert.pem": []byte("root " + content)}
}

// readSet reads the files of one version, as a program does that resolves the link once, and returns which it is.
func readSet(dir string) (string, error) {
	at, err := filepath.EvalSymlinks(filepath.Join(dir, "..data"))
	if err != nil {
		return "", err
	}
	found := ""
	for name := range version("") {
		raw, err := os.ReadFile(filepath.Join(at, name))
		if err != nil {
			return "", err
		}
		_, content, _ := strings.Cut(string(raw), " ")
		if found != "" && content != found {
			return "", fmt.Errorf("%s is of %q, another file of %q", name, content, found)
		}
		found = content
	}
	return found, nil
}

func wantSet(t *testing.T, dir, content string) {
	t.Helper()
	if got, err := readSet(dir); err != nil || got != content {
		t.Errorf("the set is %q %v, want %q", got, err, content)
	}
	for name, want := range version(content) {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(raw) != string(want) {
			t.Errorf("%s is %q %v, want %q", name, raw, err, want)
		}
	}
}

func TestSetIsReplacedAtOneMoment(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	if err := fileio.ReplaceSet(dir, version("0")); err != nil {
		t.Fatal(err)
	}
	wantSet(t, dir, "0")
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v %v", info, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "key.pem")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key: %v %v", info, err)
	}
	var stop atomic.Bool
	read := make(chan int)
	go func() {
		n := 0
		for ; !stop.Load() || n == 0; n++ {
			if _, err := readSet(dir); err != nil && !errors.Is(err, fs.ErrNotExist) { // two versions later it is gone
				t.Error(err)
			}
		}
		read <- n
	}()
	for _, content := range []string{"1", "2", "3", "4", "5"} {
		if err := fileio.ReplaceSet(dir, version(content)); err != nil {
			t.Error(err)
		}
	}
	stop.Store(true)
	t.Logf("read %d times meanwhile", <-read)
	wantSet(t, dir, "5")
	if left, _ := filepath.Glob(filepath.Join(dir, "..version-*")); len(left) != 2 {
		t.Errorf("%d versions stay, want the current and the one before", len(left))
	}
}

func TestRegularFilesBecomeASet(t *testing.T) {
	dir := t.TempDir()
	for name, content := range version("provisioned") {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := fileio.ReplaceSet(dir, version("first")); err != nil {
		t.Fatal(err)
	}
	wantSet(t, dir, "first")
}

// Whichever step fails, the old files stay, nothing else is left, and the next attempt succeeds.
func TestSetSurvivesAFullDisk(t *testing.T) {
	for _, from := range []string{"nothing", "a set", "regular files"} {
		t.Run("from "+from, func(t *testing.T) {
			for failing := 0; ; failing++ {
				dir := filepath.Join(t.TempDir(), "certs")
				switch from {
				case "a set":
					if err := fileio.ReplaceSet(dir, version("old")); err != nil {
						t.Fatal(err)
					}
				case "regular files":
					if err := os.Mkdir(dir, 0o700); err != nil {
						t.Fatal(err)
					}
					for name, content := range version("old") {
						if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
							t.Fatal(err)
						}
					}
				}
				steps, linked := 0, false
				full := fileio.FS{Fault: func(s fileio.Step, path string) error {
					if steps++; steps == failing+1 {
						return &os.PathError{Op: string(s), Path: path, Err: syscall.ENOSPC}
					}
					linked = linked || s == fileio.StepRename && filepath.Base(path) == "..data"
					return nil
				}}
				err := full.ReplaceSet(dir, version("new"))
				if err == nil {
					t.Logf("each of %d steps has failed", failing)
					return
				}
				if !errors.Is(err, syscall.ENOSPC) {
					t.Fatal(err)
				}
				if from != "nothing" {
					all := ""
					for name := range version("") {
						raw, err := os.ReadFile(filepath.Join(dir, name))
						if err != nil {
							t.Fatalf("step %d: %v", failing, err)
						}
						_, content, _ := strings.Cut(string(raw), " ")
						if all == "" {
							all = content
						}
						if content != all || content == "new" && !linked {
							t.Errorf("step %d: %s is of %q beside %q", failing, name, content, all)
						}
					}
				}
				if err := fileio.ReplaceSet(dir, version("new")); err != nil {
					t.Fatal(err)
				}
				wantSet(t, dir, "new")
				left, _ := os.ReadDir(dir)
				for _, e := range left {
					if fileio.Temporary(e.Name()) {
						t.Errorf("step %d leaves %s", failing, e.Name())
					}
				}
			}
		})
	}
}
