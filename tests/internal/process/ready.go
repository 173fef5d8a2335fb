package process

import (
	"context"
	"fmt"
	"time"
)

// often is how long to rest between two looks at something that will come.
const often = 10 * time.Millisecond

// Until tries something until it succeeds. It gives up when the time is over or when the process has ended unasked; the
// error has the last error of try and the end of the process's log.
func (p *Process) Until(ctx context.Context, within time.Duration, try func() error) error {
	return p.UntilEvery(ctx, often, within, try)
}

// UntilEvery is Until with another rest between two tries.
func (p *Process) UntilEvery(ctx context.Context, every, within time.Duration, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		if died := p.Died(); died != nil {
			return fmt.Errorf("%s has ended: %w\n%s", p.Name, died, p.LogTail())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready within %s: %w\n%s", p.Name, within, err, p.LogTail())
		case <-tick.C:
		}
	}
}
