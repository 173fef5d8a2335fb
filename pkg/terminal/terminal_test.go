package terminal

import (
	"bytes"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\n":        "plain\ttext\n",
		"\x1b[2J\x1b]0;t\x07":  `\x1b[2J\x1b]0;t\x07`,
		"a\rb\x7f":             `a\x0db\x7f`,
		"\u009b31m é \u00a0 世": `\u009b31m é ` + "\u00a0 世",
		"cut \xc2":             "cut \xc2",
	} {
		if got := Text(in); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
}

// TestPieces: a control character that is divided between two writes is escaped.
func TestPieces(t *testing.T) {
	var b bytes.Buffer
	w := &writer{to: &b}
	for _, c := range []byte("\u009b \u00e9") {
		if n, err := w.Write([]byte{c}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if b.String() != `\u009b é` {
		t.Errorf("%q", b.String())
	}
}

// TestSafe: a pipe gets the text unchanged, a terminal no control characters.
func TestSafe(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	if Safe(write) != io.Writer(write) {
		t.Error("a pipe is taken for a terminal")
	}
	_ = write.Close()

	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	fd, _, failed := unix.Syscall(unix.SYS_IOCTL, ours.Fd(), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY)
	if failed != 0 {
		t.Fatal(failed)
	}
	theirs := os.NewFile(fd, "terminal")
	defer theirs.Close()
	if _, err := io.WriteString(Safe(theirs), "\x1b[2J"); err != nil {
		t.Fatal(err)
	}
	shown := make([]byte, 64)
	n, err := ours.Read(shown)
	if err != nil || string(shown[:n]) != `\x1b[2J` {
		t.Errorf("%q, %v", shown[:n], err)
	}
}
