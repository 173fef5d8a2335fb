package kms

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"fairlead.dev/services/ca/internal/signer/keys/kms/wire"
)

// errEnded says that the helper has ended before it answered; the request may or may not have been done.
var errEnded = errors.New("the helper ended")

// helper is one process of the program ca-kms, and what it was asked. It is safe for concurrent use.
type helper struct {
	command *exec.Cmd
	started time.Time
	// done is closed when the process has ended; cause says why then.
	done  chan struct{}
	cause error

	writing sync.Mutex
	in      io.WriteCloser

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan *wire.Response
	// heard counts answers, making the keys that are being made.
	heard  atomic.Uint64
	making atomic.Int32
}

// startHelper starts the program and waits for its first message.
func startHelper(ctx context.Context, path, kind string) (*helper, error) {
	h := &helper{command: exec.Command(path), started: time.Now(), done: make(chan struct{}), waiting: map[uint64]chan *wire.Response{}}
	// In a group of its own, signals of a terminal do not end it before the ca.
	h.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var words beginning
	h.command.Stderr = &words
	in, err := h.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	h.in = in
	// Go's own pipe, because Wait closes that of StdoutPipe before all of it has been read.
	out, outEnd, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	h.command.Stdout = outEnd
	err = h.command.Start()
	_ = outEnd.Close()
	if err != nil {
		_ = out.Close()
		return nil, fmt.Errorf("start the helper: %w; install the program %s, or correct the field helper", err, HelperName)
	}
	hello := make(chan error, 1)
	go h.read(out, kind, hello)
	select {
	case err = <-hello:
	case <-ctx.Done():
		err = fmt.Errorf("it said nothing: %w", context.Cause(ctx))
	}
	if err != nil {
		h.kill()
		<-h.done
		if said := words.String(); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return nil, fmt.Errorf("the helper %s does not work: %w", path, err)
	}
	// What modules of vendors print from now on could be secret.
	words.close()
	return h, nil
}

// read reads all that the helper says, and waits for its end.
func (h *helper) read(out *os.File, kind string, hello chan<- error) {
	reader := bufio.NewReader(out)
	err := checkHello(reader, kind)
	hello <- err
	for err == nil {
		var r wire.Response
		if err = wire.Read(reader, &r); err == nil {
			h.heard.Add(1)
			h.mu.Lock()
			answer := h.waiting[r.ID]
			delete(h.waiting, r.ID)
			h.mu.Unlock()
			if answer == nil {
				err = fmt.Errorf("an answer to request %d, which was not asked", r.ID)
				break
			}
			answer <- &r
		}
	}
	h.kill()
	_ = out.Close()
	ended := h.command.Wait()
	switch {
	case !errors.Is(err, io.EOF):
		h.cause = fmt.Errorf("%w: it was ended, because it said %w", errEnded, err)
	case ended != nil:
		h.cause = fmt.Errorf("%w: %w", errEnded, ended)
	default:
		h.cause = errEnded
	}
	close(h.done)
}

func checkHello(reader io.Reader, kind string) error {
	var said wire.Hello
	if err := wire.Read(reader, &said); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("it ended at once")
		}
		return err
	}
	if said.Version != wire.Version {
		return fmt.Errorf("it is of another release than the ca (messages of version %d, not %d); install both of one release", said.Version,
			wire.Version)
	}
	if !slices.Contains(said.Types, kind) {
		return fmt.Errorf("it was built for %s, not for %s; build it by `make kms`", strings.Join(said.Types, ", "), kind)
	}
	return nil
}

// call asks and waits for the answer. If the helper answers nothing at all until ctx ends, it hangs, and is ended,
// unless the token is busy with making a key.
func (h *helper) call(ctx context.Context, r wire.Request) (*wire.Response, error) {
	answer := make(chan *wire.Response, 1)
	h.mu.Lock()
	h.next++
	r.ID = h.next
	h.waiting[r.ID] = answer
	h.mu.Unlock()
	before := h.heard.Load()
	if r.Op == wire.Make {
		h.making.Add(1)
		defer h.making.Add(-1)
	}
	written := make(chan error, 1)
	go func() {
		h.writing.Lock()
		defer h.writing.Unlock()
		written <- wire.Write(h.in, r)
	}()
	for {
		select {
		case a := <-answer:
			return a, nil
		case err := <-written:
			if err != nil {
				h.kill()
				<-h.done
				return nil, h.cause
			}
			written = nil
		case <-h.done:
			select {
			case a := <-answer:
				return a, nil
			default:
				return nil, h.cause
			}
		case <-ctx.Done():
			busy := r.Op != wire.Make && h.making.Load() > 0
			if errors.Is(ctx.Err(), context.DeadlineExceeded) && h.heard.Load() == before && !busy {
				h.kill()
			}
			// The answer that comes later finds its channel, and nobody reads it.
			return nil, context.Cause(ctx)
		}
	}
}

// asked counts requests.
func (h *helper) asked() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.next
}

// retire stops the helper when nobody waits for an answer any more.
func (h *helper) retire() {
	for deadline := time.Now().Add(makeTimeout); time.Now().Before(deadline); {
		h.mu.Lock()
		left := len(h.waiting)
		h.mu.Unlock()
		if left == 0 || h.ended() {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	h.stop()
}

// stop asks the helper to end, by the end of its input, and ends it if it does not in a second.
func (h *helper) stop() {
	_ = h.in.Close()
	select {
	case <-h.done:
	case <-time.After(time.Second):
		h.kill()
		<-h.done
	}
}

func (h *helper) kill() { _ = h.command.Process.Kill() }

func (h *helper) ended() bool {
	select {
	case <-h.done:
		return true
	default:
		return false
	}
}

// beginning keeps the first bytes that are written, until close.
type beginning struct {
	mu     sync.Mutex
	closed bool
	text   bytes.Buffer
}

func (b *beginning) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if room := maxText - b.text.Len(); !b.closed && room > 0 {
		b.text.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (b *beginning) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.text.Reset()
}

func (b *beginning) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.TrimSpace(b.text.String())
}
