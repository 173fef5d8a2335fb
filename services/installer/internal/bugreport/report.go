// Package bugreport gathers what is known of a mesh in one archive. A Report runs tasks at the same time, redacts what
// they return, and writes it to a .tar.gz of bounded size; what could not be read is in missing.txt, with the reason.
// Selection says which Pods are meant, in istioctl's form. `fairlead bug-report` adds the tasks.
package bugreport

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"fairlead.dev/pkg/fileio"
)

// Bounds of a report.
const (
	// MaxFile bounds one file of the archive, MaxTotal all of them before compression, and MaxFiles their number.
	MaxFile  = 16 << 20
	MaxTotal = 512 << 20
	MaxFiles = 20_000
	// workers is the number of tasks at the same time.
	workers = 4
	// taskTime bounds one task.
	taskTime = time.Minute
)

// missingFile names what could not be read.
const missingFile = "missing.txt"

// Form says how the content of a file is redacted.
type Form int

// Forms of content.
const (
	Text Form = iota
	JSON
	YAML
)

// Task gets the content of one file.
type Task struct {
	// Name is the path in the archive.
	Name string
	Form Form
	Get  func(ctx context.Context) ([]byte, error)
}

// Report is an archive that is being written. Add is safe for concurrent use.
type Report struct {
	Redactor *Redactor

	root  string
	at    time.Time
	file  *os.File
	gz    *gzip.Writer
	tar   *tar.Writer
	path  string
	limit int64

	mu      sync.Mutex
	names   map[string]bool
	bytes   int64
	missing []string
	failed  error
}

// New begins an archive at a path, in a temporary file beside it until Close. at is the time that its files get.
func New(file string, at time.Time) (*Report, error) {
	f, err := os.CreateTemp(path.Dir(file), fileio.TempPrefix+"*") // 0600
	if err != nil {
		return nil, fmt.Errorf("archive %s: %w; name another directory with --dir", file, err)
	}
	gz := gzip.NewWriter(f)
	return &Report{
		Redactor: &Redactor{}, root: strings.TrimSuffix(path.Base(file), ".tar.gz"), at: at, file: f, gz: gz, tar: tar.NewWriter(gz), path: file,
		limit: MaxTotal, names: map[string]bool{},
	}, nil
}

// Limit sets another bound than MaxTotal.
func (r *Report) Limit(bytes int64) { r.limit = bytes }

// Run runs tasks and adds what they return, in any order. It returns when all have ended, or ctx has: tasks that have
// not ended by then are missing.
func (r *Report) Run(ctx context.Context, tasks []Task) {
	queue := make(chan Task)
	var all sync.WaitGroup
	for range min(workers, len(tasks)) {
		all.Go(func() {
			for t := range queue {
				r.run(ctx, t)
			}
		})
	}
	for _, t := range tasks {
		queue <- t
	}
	close(queue)
	all.Wait()
}

func (r *Report) run(ctx context.Context, t Task) {
	if ctx.Err() != nil {
		r.Missing(t.Name, fmt.Errorf("not begun: the time of the report was over; --timeout sets another one"))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, taskTime)
	defer cancel()
	type result struct {
		content []byte
		err     error
	}
	done := make(chan result, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- result{err: fmt.Errorf("defect: %v", p)}
			}
		}()
		content, err := t.Get(ctx)
		done <- result{content, err}
	}()
	select {
	case res := <-done:
		if len(res.content) > 0 || res.err == nil {
			r.Add(t.Name, t.Form, res.content)
		}
		if res.err != nil {
			r.Missing(t.Name, res.err)
		}
	case <-ctx.Done():
		r.Missing(t.Name, fmt.Errorf("no answer in time: %w", ctx.Err()))
	}
}

// Missing notes that something could not be read.
func (r *Report) Missing(name string, err error) {
	text := r.Redactor.Text([]byte(strings.Join(strings.Fields(err.Error()), " ")))
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.missing) < MaxFiles {
		r.missing = append(r.missing, fmt.Sprintf("%s: %s", name, text))
	}
}

// Gaps is the number of things that could not be read.
func (r *Report) Gaps() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.missing)
}

// Add redacts content and adds it as a file. What is too long is cut: of logs and other texts the end stays.
func (r *Report) Add(name string, form Form, content []byte) {
	switch form {
	case JSON:
		content = r.Redactor.JSON(content)
	case YAML:
		content = r.Redactor.YAML(content)
	default:
		content = r.Redactor.Text(content)
	}
	cut := len(content) - MaxFile
	if cut > 0 {
		content = content[cut:]
		if i := bytes.IndexByte(content, '\n'); i >= 0 {
			content = content[i+1:]
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	name = clean(name)
	for n := 2; r.names[name]; n++ {
		name = fmt.Sprintf("%s-%d", strings.TrimSuffix(name, fmt.Sprintf("-%d", n-1)), n)
	}
	switch {
	case len(r.names) >= MaxFiles:
		r.missing = append(r.missing, name+": the report has "+fmt.Sprint(MaxFiles)+
			" files, the most it may have; choose fewer Pods with --include")
		return
	case r.bytes+int64(len(content)) > r.limit:
		r.missing = append(r.missing, fmt.Sprintf(
			"%s: its %d bytes would make the report larger than %d bytes; choose fewer Pods with --include, or a shorter --duration", name,
			len(content), r.limit))
		return
	case cut > 0:
		r.missing = append(r.missing, fmt.Sprintf("%s: its first %d bytes: a file of the report has %d at most", name, cut, MaxFile))
	}
	r.names[name] = true
	r.bytes += int64(len(content))
	r.failed = errors.Join(r.failed, r.put(name, content))
}

func (r *Report) put(name string, content []byte) error {
	if err := r.tar.WriteHeader(&tar.Header{Name: r.root + "/" + name, Mode: 0o600, Size: int64(len(content)), ModTime: r.at,
		Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err := io.Copy(r.tar, bytes.NewReader(content))
	return err
}

// clean makes a path that stays in the archive's directory, of names that come from a cluster.
func clean(name string) string {
	name = strings.Map(func(c rune) rune {
		if c < 0x20 || c == 0x7f || c == '\\' {
			return '_'
		}
		return c
	}, name)
	return strings.TrimPrefix(path.Clean("/"+name), "/")
}

// Close ends the archive and gives it its name. It returns the path and the size.
func (r *Report) Close() (file string, size int64, err error) {
	slices.Sort(r.missing)
	text := "Nothing is missing.\n"
	if len(r.missing) > 0 {
		text = strings.Join(r.missing, "\n") + "\n"
	}
	err = errors.Join(r.failed, r.put(missingFile, []byte(text)), r.tar.Close(), r.gz.Close(), r.file.Sync(), r.file.Close())
	if err == nil {
		err = os.Rename(r.file.Name(), r.path)
	}
	if err != nil {
		return "", 0, errors.Join(fmt.Errorf("archive %s: %w", r.path, err), os.Remove(r.file.Name()))
	}
	info, err := os.Stat(r.path)
	if err != nil {
		return "", 0, err
	}
	return r.path, info.Size(), nil
}

// Discard removes the archive that was begun.
func (r *Report) Discard() {
	_ = r.file.Close()
	_ = os.Remove(r.file.Name())
}
