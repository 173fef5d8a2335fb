// Package terminal keeps text of others from steering the terminal that it is shown on: names in files, logs of
// applications and answers of proxies may hold control sequences.
package terminal

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// Safe returns the writer for text of others: on a terminal, control characters but tab and line end are shown as \x1b
// and not sent. A file or a pipe gets what is written, unchanged.
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

// Text shows a text's control characters.
func Text(text string) string {
	var b bytes.Buffer
	w := &writer{to: &b}
	_, _ = w.Write([]byte(text)) // a buffer takes everything
	if w.held {
		b.WriteByte(lead)
	}
	return b.String()
}

// lead begins the control characters U+0080 to U+009F in UTF-8.
const lead = 0xc2

type writer struct {
	to io.Writer
	// held is true if the last byte written was lead: what it means depends on the next one.
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
