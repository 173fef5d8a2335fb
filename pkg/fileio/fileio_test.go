package fileio_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fairlead.dev/pkg/fileio"
)

// wantFile checks content and mode of a file, and that it is the only one in its directory.
func wantFile(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != content {
		t.Errorf("%s holds %q, %v; want %q", path, got, err, content)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != mode {
		t.Errorf("mode %v, %v; want %v", info.Mode(), err, mode)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestWriteReplacesContentAndMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key.pem")
	for _, step := range []struct {
		content string
		mode    fs.FileMode
	}{{"one", 0o666}, {"two", 0o600}, {"", 0o644}} {
		if err := fileio.Write(path, []byte(step.content), step.mode); err != nil {
			t.Fatal(err)
		}
		wantFile(t, path, step.content, step.mode)
	}
}

func TestWriteReplacesALinkAndNotItsTarget(t *testing.T) {
	target, path := filepath.Join(t.TempDir(), "target"), filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.WriteFile(target, []byte("old"), 0o600), os.Symlink(target, path)); err != nil {
		t.Fatal(err)
	}
	if err := fileio.Write(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, "new", 0o600)
	wantFile(t, target, "old", 0o600)
}

// TestWhatIsNoFileStays: root may remove every device, so `-o /dev/null` must not.
func TestWhatIsNoFileStays(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := fileio.Write(pipe, []byte("x"), 0o600); err == nil {
		t.Error("a pipe was replaced")
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(pipe, link); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0) // which opens without waiting for a writer
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for _, path := range []string{pipe, link} {
		if err := fileio.Output(path, []byte("said"), 0o600); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if _, err := io.ReadFull(reader, got); err != nil || string(got) != "said" {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	for path, want := range map[string]fs.FileMode{pipe: fs.ModeNamedPipe, link: fs.ModeSymlink} {
		if info, err := os.Lstat(path); err != nil || info.Mode().Type() != want {
			t.Errorf("%s is %v (%v)", path, info.Mode(), err)
		}
	}
	plain := filepath.Join(t.TempDir(), "plain")
	if err := fileio.Output(plain, []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	wantFile(t, plain, "new", 0o644)
}

func TestOnlyReplaceMakesDirectories(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "file")
	if err := fileio.Write(path, nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("wrote into a directory that does not exist: %v", err)
	}
	if err := fileio.Replace(path, []byte("text")); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, "text", 0o600)
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", info.Mode(), err)
	}
}

// TestFailedStepLeavesTheOldFile: a write that fails at any step leaves nothing of its own behind, and before the
// rename the old content.
func TestFailedStepLeavesTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, step := range []fileio.Step{fileio.StepCreate, fileio.StepWrite, fileio.StepSync, fileio.StepRename, fileio.StepDir} {
		if err := fileio.Replace(path, []byte("old")); err != nil {
			t.Fatal(err)
		}
		faulty := fileio.FS{Fault: func(s fileio.Step, _ string) error {
			if s == step {
				return syscall.ENOSPC
			}
			return nil
		}}
		if err := faulty.Replace(path, []byte("new")); !fileio.Exhausted(err) {
			t.Errorf("%s: %v", step, err)
		}
		want := "old"
		if step == fileio.StepDir {
			want = "new"
		}
		wantFile(t, path, want, 0o600)
	}
}

func TestReadIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := fileio.Read(path, 5); err != nil || string(got) != "12345" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := fileio.Read(path, 4); !errors.Is(err, fileio.ErrTooLarge) || !strings.Contains(err.Error(), path) ||
		!strings.Contains(err.Error(), "4 bytes") {
		t.Errorf("five bytes of four: %v", err)
	}
	if _, err := fileio.Read("/dev/zero", 1<<20); !errors.Is(err, fileio.ErrTooLarge) {
		t.Errorf("a file without end: %v", err)
	}
	if _, err := fileio.Read(path+"x", 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestOpenRegular(t *testing.T) {
	dir := t.TempDir()
	pipe, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "file")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, pipe, "/dev/zero"} {
		if _, err := fileio.OpenRegular(path); !errors.Is(err, fileio.ErrNotRegular) {
			t.Errorf("%s: %v", path, err)
		}
	}
	f, err := fileio.OpenRegular(file)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}
