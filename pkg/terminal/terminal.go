// Package terminal prevents terminal injection: names in files, logs of applications and answers of proxies may hold
// control sequences, which Safe and Text escape.
package terminal

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// Safe returns a writer for untrusted text. If w is a terminal, control characters other than tab and newline are
// escaped as \x1b; a file or a pipe gets the text unchanged.
func Safe(w io.Writer) io.Writer {
	f, ok := w.(*os.File)
	if !ok {
		return w
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return w
	}
	return &writer{to: w}
}

// Text escapes the control characters of a text.
func Text(text string) string {
	var b bytes.Buffer
	w := &writer{to: &b}
	_, _ = w.Write([]byte(text)) // writes to a buffer do not fail
	if w.held {
		b.WriteByte(lead)
	}
	return b.String()
}

// lead is the first byte, in UTF-8, of the control characters U+0080 to U+009F.
const lead = 0xc2

type writer struct {
	to io.Writer
	// held is set if the last byte written was lead, whose meaning depends on the next byte.
	held bool
}

// Write implements io.Writer.
func (w *writer) Write(p []byte) (int, error) {
	var b bytes.Buffer
	for _, c := range p {
		held := w.held
		w.held = false
		switch {
		case held && c >= 0x80 && c < 0xa0:
			fmt.Fprintf(&b, `\u%04x`, c)
			continue
		case held:
			b.WriteByte(lead)
		}
		switch {
		case c == lead:
			w.held = true
		case c < ' ' && c != '\n' && c != '\t', c == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	if _, err := w.to.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}
