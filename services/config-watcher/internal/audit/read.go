package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// Last returns the newest n accepted lines and the newest n refused lines, so that neither hides the other. They are
// JSON, sorted by time, oldest first.
func (l *Log) Last(n int) ([]string, error) {
	if l.cfg.Path == "" {
		return nil, ErrNoFile
	}
	done, err := l.last(n)
	if err != nil {
		return nil, err
	}
	refused, err := l.refused.last(n)
	if err != nil {
		return nil, err
	}
	times := func(lines []string) []time.Time {
		out := make([]time.Time, len(lines))
		for i, text := range lines {
			out[i] = timeOf(text)
		}
		return out
	}
	out := make([]string, 0, len(done)+len(refused))
	doneAt, refusedAt := times(done), times(refused)
	for i, text := range done {
		for len(refused) > 0 && refusedAt[0].Before(doneAt[i]) {
			out, refused, refusedAt = append(out, refused[0]), refused[1:], refusedAt[1:]
		}
		out = append(out, text)
	}
	return append(out, refused...), nil
}

// timeOf is the time of a line; zero if the line is damaged.
func timeOf(text string) time.Time {
	var e Entry
	_ = json.Unmarshal([]byte(text), &e)
	return e.Time
}

// last returns the newest n lines of this log's files.
func (l *Log) last(n int) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for i := 0; i <= l.cfg.Keep && len(out) < n; i++ {
		lines, err := linesOf(l.fileAt(i))
		if err != nil {
			return nil, err
		}
		lines = lines[max(len(lines)-(n-len(out)), 0):]
		texts := make([]string, len(lines))
		for i, line := range lines {
			_, text, _ := strings.Cut(line, " ")
			texts[i] = text
		}
		out = append(texts, out...)
	}
	return out, nil
}

// fileAt returns the path of the i-th newest file.
func (l *Log) fileAt(i int) string {
	if i == 0 {
		return l.cfg.Path
	}
	return rotated(l.cfg.Path, i)
}

// linesOf reads the lines of a file; none if the file does not exist.
func linesOf(path string) ([]string, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || len(content) == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return strings.Split(string(bytes.TrimSuffix(content, []byte("\n"))), "\n"), nil
}

// Verify checks the chains of all files, accepted and refused. It returns a description of what it has checked, and the
// place where a chain is broken, "" if none is. It does not detect that the newest lines were removed before the start,
// or that all lines were rewritten; compare the hash at the end with the hashes in the process's log for that.
func (l *Log) Verify() (covers, broken string, err error) {
	if l.cfg.Path == "" {
		return "", "", ErrNoFile
	}
	if covers, broken, err = l.verify(); broken != "" || err != nil {
		return "", broken, err
	}
	refused, broken, err := l.refused.verify()
	if broken != "" || err != nil {
		return "", broken, err
	}
	return covers + "; refused writes: " + refused, "", nil
}

// verify checks the chain of this log's files.
func (l *Log) verify() (covers, broken string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var first, last Entry
	count, prev := 0, ""
	for i := l.cfg.Keep; i >= 0; i-- {
		lines, err := linesOf(l.fileAt(i))
		if err != nil {
			return "", "", err
		}
		for n, line := range lines {
			at := fmt.Sprintf("%s:%d", l.fileAt(i), n+1)
			e, hash, err := parse([]byte(line))
			switch {
			case err != nil:
				return "", fmt.Sprintf("%s: %v", at, err), nil
			case count > 0 && e.Prev != prev:
				return "", fmt.Sprintf("%s: line %d does not follow line %d: something was changed or taken out", at, e.Sequence, last.Sequence), nil
			case count > 0 && e.Sequence != last.Sequence+1:
				return "", fmt.Sprintf("%s: line %d comes after line %d", at, e.Sequence, last.Sequence), nil
			}
			if count == 0 {
				first = e
			}
			last, prev = e, hash
			count++
		}
	}
	if prev != l.prev {
		return "", fmt.Sprintf("%s: does not end with the line that was written last, %d", l.cfg.Path, l.next-1), nil
	}
	if count == 0 {
		return "no lines yet", "", nil
	}
	return fmt.Sprintf("%d lines, %d to %d, from %s to %s, ending with hash %s", count, first.Sequence, last.Sequence,
		first.Time.Format("2006-01-02T15:04:05Z"), last.Time.Format("2006-01-02T15:04:05Z"), prev), "", nil
}
