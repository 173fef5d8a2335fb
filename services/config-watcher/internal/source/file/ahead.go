package file

import (
	"context"
	"crypto/sha256"
	"runtime"

	"golang.org/x/sync/semaphore"
)

// ahead decodes the new and changed files of a scan on all processors, a few files before read needs them. read still
// decides everything, in the order of the files; a file that has changed in between is decoded again.
type ahead struct {
	files map[string]chan decodedContent
	slots *semaphore.Weighted
	ended <-chan struct{} // closed when no further file is begun
	stop  context.CancelFunc
}

// decodedContent is the decoded content of a file; zero if it could not be read or need not be decoded.
type decodedContent struct {
	sum     [sha256.Size]byte
	decoded *Decoded
}

// decodeAhead starts to decode the files that may have changed since they were last read. The caller must call done for
// each file in the order of the list, and end at last.
func (s *Source) decodeAhead(ctx context.Context, files []entry, full bool) *ahead {
	ctx, stop := context.WithCancel(ctx)
	a := &ahead{files: map[string]chan decodedContent{}, slots: semaphore.NewWeighted(int64(2 * runtime.GOMAXPROCS(0))), ended: ctx.Done(),
		stop: stop}
	var todo []func()
	for _, f := range files {
		st := s.files[f.path]
		known := st != nil && st.seen
		if known && !full && sameFile(st.info, f.info) {
			continue
		}
		var sum [sha256.Size]byte
		if known {
			sum = st.sum
		}
		out := make(chan decodedContent, 1)
		a.files[f.path] = out
		todo = append(todo, func() {
			content, err := readFile(f.path)
			if now := sha256.Sum256(content); err == nil && (!known || now != sum) {
				d := s.cfg.Decode.Decode(f.name, content)
				out <- decodedContent{now, &d}
				return
			}
			out <- decodedContent{}
		})
	}
	if len(todo) < 2 {
		a.files = nil // nothing to gain
		return a
	}
	go func() {
		for _, decode := range todo {
			if a.slots.Acquire(ctx, 1) != nil {
				return
			}
			go decode()
		}
	}()
	return a
}

// of returns what was decoded of a file's content with the given hash; nil if that was not done.
func (a *ahead) of(path string, sum [sha256.Size]byte) *Decoded {
	out, ok := a.files[path]
	if !ok {
		return nil
	}
	select {
	case d := <-out:
		out <- d // for done
		if d.sum == sum {
			return d.decoded
		}
	case <-a.ended:
	}
	return nil
}

// done makes room for a file further on.
func (a *ahead) done(path string) {
	out, ok := a.files[path]
	if !ok {
		return
	}
	delete(a.files, path)
	select {
	case <-out:
		a.slots.Release(1)
	case <-a.ended:
	}
}

// end ends what is not needed any more.
func (a *ahead) end() { a.stop() }

// decoded decodes a file's content, or returns what was decoded ahead.
func (s *Source) decoded(f entry, sum [sha256.Size]byte, content []byte) Decoded {
	if d := s.ahead.of(f.path, sum); d != nil {
		return *d
	}
	return s.cfg.Decode.Decode(f.name, content)
}
