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
	// stop ends what is not needed any more.
	stop context.CancelFunc
}

// decodedContent is the decoded content of a file; zero if it could not be read or need not be decoded.
type decodedContent struct {
	sum     [sha256.Size]byte
	decoded *Decoded
}

// decodeAhead starts to decode the files that may have changed since they were last read. The caller must take each
// file in the order of the list, and stop at last.
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

// take returns what was decoded of the next file of the list, and makes room for a file further on.
func (a *ahead) take(path string) decodedContent {
	out, ok := a.files[path]
	if !ok {
		return decodedContent{}
	}
	select {
	case d := <-out:
		a.slots.Release(1)
		return d
	case <-a.ended:
		return decodedContent{}
	}
}
