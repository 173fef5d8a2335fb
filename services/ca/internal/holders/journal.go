package holders

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/notify"
)

const (
	journalName = "holders.journal"
	// header begins a journal. Its last byte but one is changed to failed when a write fails, which works on a full
	// disk, too: records are missing then.
	header     = "fairlead holders 1 o\n"
	stateAt    = len(header) - 2
	failedMark = 'f'
	// maxBuffered bounds what waits for a disk that does not answer.
	maxBuffered = 4 << 20
	// rewriteChunk is how many certificates are encoded at once while nothing is issued.
	rewriteChunk = 500
	// compactFrom is the size below which a journal is not made smaller.
	compactFrom = 1 << 20
)

// journal is the file. Registry.mu guards buf, tail and what is below them; io is held by whoever writes to the file.
type journal struct {
	dir, boot string
	fs        fileio.FS

	io   sync.Mutex
	file *os.File
	// unnamed says that the name of the file may not be durable yet.
	unnamed bool

	// buf waits to be written, tail for the end of a rewriting.
	buf, spare, tail []byte
	rewriting        bool
	// flushed is closed when what is in buf now has been written, or will not be.
	flushed chan struct{}
	// slow says that somebody has given up waiting for flushed.
	slow      bool
	slowSince time.Time
	err       error
	// size is that of the file, base what it was after the last rewriting.
	size, base int64
	failures   int
}

func (j *journal) path() string { return filepath.Join(j.dir, journalName) }

func (j *journal) step(s fileio.Step) error {
	if j.fs.Fault == nil {
		return nil
	}
	return j.fs.Fault(s, j.path())
}

func (j *journal) write(file *os.File, text []byte) error {
	if err := j.step(fileio.StepWrite); err != nil {
		return err
	}
	_, err := file.Write(text)
	return err
}

func (j *journal) sync(file *os.File) error {
	if err := j.step(fileio.StepSync); err != nil {
		return err
	}
	return file.Sync()
}

// loaded is what a journal says beside its records.
type loaded struct {
	// none: there is no journal.
	none bool
	// lost is why records may be missing, "" if none is.
	lost string
	// torn is how many bytes of an unfinished record were left out.
	torn int64
	// begun is when the journal was begun, in seconds.
	begun int64
}

// read calls apply with each record of the journal.
func (j *journal) read(apply func(*event)) (loaded, error) {
	file, err := fileio.OpenRegular(j.path())
	if errors.Is(err, fs.ErrNotExist) {
		return loaded{none: true}, nil
	}
	if err != nil {
		return loaded{}, err
	}
	defer func() { _ = file.Close() }()
	return decode(file, j.boot, apply)
}

// decode reads a journal. The error is one of reading; damage is told in loaded.
func decode(in io.Reader, boot string, apply func(*event)) (loaded, error) {
	buf := make([]byte, len(header), 64<<10)
	if _, err := io.ReadFull(in, buf); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return loaded{}, err
	}
	if string(buf[:stateAt]) != header[:stateAt] {
		return loaded{lost: "the file is not a journal of the ca"}, nil
	}
	var out loaded
	if buf[stateAt] != header[stateAt] {
		out.lost = "not every certificate could be written to the journal"
	}
	closed, opened := false, ""
	last := func() {
		if !closed && (boot == "" || opened != boot) && out.lost == "" {
			out.lost = "the machine went down before everything was on its disk"
		}
	}
	buf = buf[:0]
	for ended := false; ; {
		for len(buf) > 0 {
			e, n, found := decodeEvent(buf)
			if found == torn && !ended {
				break
			}
			if found == torn {
				out.torn = int64(len(buf))
				closed = false
				last()
				return out, nil
			}
			if found != "" {
				out.lost = string(found)
				return out, nil
			}
			closed = e.kind == kindClosed
			if e.kind == kindOpened {
				opened, out.begun = e.text, e.until
			}
			apply(&e)
			buf = buf[n:]
		}
		if ended {
			last()
			return out, nil
		}
		buf = append(make([]byte, 0, 64<<10), buf...)
		n, err := in.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case errors.Is(err, io.EOF):
			ended = true
		case err != nil:
			return out, err
		}
	}
}

// bootID tells one run of the machine from another; "" if nobody knows.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// append adds a record. The caller holds Registry.mu.
func (j *journal) append(e *event) {
	if j.dir == "" {
		return
	}
	if j.rewriting {
		j.tail = appendEvent(j.tail, e)
	}
	if j.err == nil {
		j.buf = appendEvent(j.buf, e)
		if len(j.buf) > maxBuffered {
			j.fail(errors.New("the disk does not answer"))
		}
	}
}

// fail says that records are missing from the file. The caller holds Registry.mu.
func (j *journal) fail(err error) {
	if j.err == nil {
		j.failures++
	}
	j.err, j.buf = err, nil
}

// markFailed writes down that records are missing. The caller holds j.io.
func (j *journal) markFailed() {
	if j.file != nil {
		_, _ = j.file.WriteAt([]byte{failedMark}, int64(stateAt))
	}
}

// flush writes what waits.
func (r *Registry) flush() {
	r.journal.io.Lock()
	defer r.journal.io.Unlock()
	r.flushHeld()
}

// flushHeld is flush for a caller that holds journal.io. It tells whether more has come meanwhile.
func (r *Registry) flushHeld() (more bool) {
	j := &r.journal
	r.mu.Lock()
	buf, done, before := j.buf, j.flushed, j.err
	j.buf, j.flushed = j.spare[:0], make(chan struct{})
	r.mu.Unlock()
	var err error
	if len(buf) > 0 && before == nil {
		err = j.write(j.file, buf)
	}
	r.mu.Lock()
	j.spare, j.slow = buf[:0], false
	if err != nil {
		j.fail(err)
	} else if before == nil {
		j.size += int64(len(buf))
	}
	failed := j.err != nil
	more = len(j.buf) > 0
	close(done)
	r.mu.Unlock()
	if failed {
		j.markFailed()
	}
	return more
}

// syncNow makes durable what was written.
func (r *Registry) syncNow() {
	j := &r.journal
	if j.file == nil {
		return
	}
	err := j.sync(j.file)
	if err == nil && j.unnamed {
		err = j.fs.SyncDir(j.dir)
		j.unnamed = err != nil
	}
	if err != nil {
		r.mu.Lock()
		j.fail(err)
		r.mu.Unlock()
		j.io.Lock()
		j.markFailed()
		j.io.Unlock()
	}
}

// rewrite writes everything to a new file, which takes the place of the journal. Open and Run call it, one at a time.
func (r *Registry) rewrite() error {
	j := &r.journal
	r.mu.Lock()
	before := j.err
	j.rewriting, j.tail = true, nil
	r.mu.Unlock()
	err := r.rewriteTo()
	r.mu.Lock()
	defer r.mu.Unlock()
	j.rewriting, j.tail = false, nil
	if err != nil {
		j.err = before
		j.fail(err)
	}
	return err
}

func (r *Registry) rewriteTo() (err error) {
	j := &r.journal
	opened := event{kind: kindOpened, text: j.boot, until: r.cfg.Clock.Now().Unix()}
	temp, err := j.fs.Prepare(j.dir, appendEvent([]byte(header), &opened))
	if err != nil {
		return err
	}
	file, err := os.OpenFile(temp, os.O_RDWR, 0)
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	defer func() {
		if err != nil {
			_ = file.Close()
			_ = os.Remove(temp) // gone if it was renamed
		}
	}()
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	write := func(text []byte) error {
		size += int64(len(text))
		return j.write(file, text)
	}
	for from, more := 0, true; more; from += rewriteChunk {
		var chunk []byte
		if chunk, more = r.encode(from); len(chunk) > 0 {
			if err := write(chunk); err != nil {
				return err
			}
		}
	}
	if err := j.sync(file); err != nil {
		return err
	}
	j.io.Lock()
	defer j.io.Unlock()
	r.mu.Lock()
	tail := j.tail
	// What is in buf is in tail, too.
	j.buf, j.rewriting, j.err = nil, false, nil
	r.mu.Unlock()
	if len(tail) > maxBuffered {
		return errors.New("the disk does not answer")
	}
	if len(tail) > 0 {
		if err := write(tail); err != nil {
			return err
		}
	}
	if err := j.fs.Rename(temp, j.path()); err != nil {
		return err
	}
	if j.file != nil {
		_ = j.file.Close()
	}
	j.file, j.unnamed = file, true
	r.mu.Lock()
	j.size, j.base = size, size
	r.mu.Unlock()
	notify.Wake(r.unsynced)
	return nil
}

// encode returns the records of some entries, and false with the last of them and everything else.
func (r *Registry) encode(from int) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.table
	var out []byte
	to := min(from+rewriteChunk, len(t.entries))
	for i := from; i < to; i++ {
		if t.entries[i].flags&used != 0 {
			out = appendEvent(out, &event{kind: kindIssued, cert: t.certificate(int32(i))})
		}
	}
	if to < len(t.entries) {
		return out, true
	}
	for key, f := range t.folded {
		out = appendEvent(out, &event{kind: kindFolded, key: key, fold: f})
	}
	if r.unasked {
		out = appendEvent(out, &event{kind: kindUnasked})
	}
	if t.unknownUntil != 0 {
		out = appendEvent(out, &event{kind: kindUnknown, until: t.unknownUntil, text: t.unknownWhy})
	}
	return out, false
}

// problem is what keeps the journal from being written. The caller holds Registry.mu.
func (j *journal) problem(now time.Time) error {
	switch {
	case j.err != nil:
		return fmt.Errorf("%s cannot be written: %w; make room or mend the disk, what is missing is written then", j.path(), j.err)
	case j.slow && now.Sub(j.slowSince) > slowAfter:
		return fmt.Errorf("%s: the disk has not written for %s; look at what else it does", j.path(), now.Sub(j.slowSince))
	}
	return nil
}
