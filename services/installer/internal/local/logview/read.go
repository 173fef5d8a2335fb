package logview

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Source is a log file and the name of its lines.
type Source struct{ Name, Path string }

// Options choose lines.
type Options struct {
	// Tail is how many lines of each source are shown at most, the last ones; negative means all.
	Tail int
	// Since excludes earlier lines; zero excludes none.
	Since time.Time
	// Level excludes lines of more verbose levels.
	Level Level
	// Poll is how often Follow looks for new lines.
	Poll time.Duration
}

// maxLine is the length at which a line is cut.
const maxLine = 1 << 20

// file reads the lines of one source that the options choose.
type file struct {
	source Source
	opts   Options
	f      *os.File
	r      *bufio.Reader
	// offset is how much of the file was read; part is an unfinished line at its end.
	offset int64
	part   []byte
	last   Line
}

// Reader reads sources: first Read, then Follow if new lines are wanted. Close it.
type Reader struct {
	opts  Options
	files []*file
}

// Open opens the sources. A file that does not exist yet is read by Follow once it does.
func Open(sources []Source, opts Options) (*Reader, error) {
	r := &Reader{opts: opts}
	for _, s := range sources {
		f := &file{source: s, opts: opts}
		if err := f.open(); err != nil {
			r.Close()
			return nil, err
		}
		r.files = append(r.files, f)
	}
	return r, nil
}

func (f *file) open() error {
	opened, err := os.Open(f.source.Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("log of %s: %w", f.source.Name, err)
	}
	f.f, f.r, f.offset, f.part = opened, bufio.NewReaderSize(opened, 64<<10), 0, nil
	return nil
}

// Close closes the files.
func (r *Reader) Close() {
	for _, f := range r.files {
		if f.f != nil {
			_ = f.f.Close()
		}
	}
}

// next returns the next chosen line; false at the end of the file, where an unfinished line waits for its newline.
func (f *file) next() (Line, bool, error) {
	for f.f != nil {
		chunk, err := f.r.ReadSlice('\n')
		f.offset += int64(len(chunk))
		if room := maxLine - len(f.part); len(chunk) > room {
			f.part = append(f.part, chunk[:room]...)
		} else {
			f.part = append(f.part, chunk...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			return Line{}, false, nil
		case err != nil:
			return Line{}, false, fmt.Errorf("log of %s: %w", f.source.Name, err)
		}
		if line, wanted := f.line(); wanted {
			return line, true, nil
		}
	}
	return Line{}, false, nil
}

// line parses the finished line, and reports whether the options choose it.
func (f *file) line() (Line, bool) {
	text := f.part
	if n := len(text); n > 0 && text[n-1] == '\n' {
		text = text[:n-1]
	}
	stamp, text := cutStamp(text)
	at, level, timed, levelled := parse(text)
	if !stamp.IsZero() {
		at, timed = stamp, true
	}
	line := Line{Source: f.source.Name, Text: string(text), At: f.last.At, Level: f.last.Level}
	if timed {
		line.At = at
	}
	if levelled {
		line.Level = level
	} else if timed {
		line.Level = Info
	}
	f.part, f.last = f.part[:0], Line{At: line.At, Level: line.Level}
	return line, line.Level >= f.opts.Level && !line.At.Before(f.opts.Since)
}

// Read passes the lines of all sources to show, in the order of their times.
func (r *Reader) Read(show func(Line) error) error {
	heads := make([]func() (Line, bool, error), 0, len(r.files))
	for _, f := range r.files {
		next := f.next
		if r.opts.Tail >= 0 {
			last, err := f.tail(r.opts.Tail)
			if err != nil {
				return err
			}
			next = func() (Line, bool, error) {
				if len(last) == 0 {
					return Line{}, false, nil
				}
				line := last[0]
				last = last[1:]
				return line, true, nil
			}
		}
		heads = append(heads, next)
	}
	return merge(heads, show)
}

// merge passes lines to show until all heads are at their ends, each time the oldest of the heads' next lines.
func merge(heads []func() (Line, bool, error), show func(Line) error) error {
	lines := make([]*Line, len(heads))
	for {
		oldest := -1
		for i, next := range heads {
			if lines[i] == nil && next != nil {
				line, ok, err := next()
				if err != nil {
					return err
				}
				if !ok {
					heads[i] = nil
					continue
				}
				lines[i] = &line
			}
			if lines[i] != nil && (oldest < 0 || lines[i].At.Before(lines[oldest].At)) {
				oldest = i
			}
		}
		if oldest < 0 {
			return nil
		}
		if err := show(*lines[oldest]); err != nil {
			return err
		}
		lines[oldest] = nil
	}
}

// tail reads to the end of the file and returns the last n chosen lines.
func (f *file) tail(n int) ([]Line, error) {
	var ring []Line
	for {
		line, ok, err := f.next()
		if err != nil {
			return nil, err
		}
		if !ok {
			return ring, nil
		}
		if ring = append(ring, line); len(ring) > n {
			ring = ring[1:]
		}
	}
}

// Follow passes lines to show as they are written, until ctx ends. Call it after Read.
func (r *Reader) Follow(ctx context.Context, show func(Line) error) error {
	tick := time.NewTicker(r.opts.Poll)
	defer tick.Stop()
	for {
		heads := make([]func() (Line, bool, error), 0, len(r.files))
		for _, f := range r.files {
			if err := f.refresh(); err != nil {
				return err
			}
			heads = append(heads, f.next)
		}
		if err := merge(heads, show); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// refresh opens a file that exists by now, and opens it again if it was truncated or replaced.
func (f *file) refresh() error {
	if f.f == nil {
		return f.open()
	}
	there, err := os.Stat(f.source.Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("log of %s: %w", f.source.Name, err)
	}
	mine, err := f.f.Stat()
	if err != nil {
		return fmt.Errorf("log of %s: %w", f.source.Name, err)
	}
	if os.SameFile(there, mine) && there.Size() >= f.offset {
		return nil
	}
	_ = f.f.Close()
	f.f = nil
	return f.open()
}
