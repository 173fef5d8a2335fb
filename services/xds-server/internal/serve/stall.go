package serve

import (
	"sync/atomic"
	"time"
)

// stallDetector tells for how long a client has taken no data. Server.handle closes the stream after
// Config.StallTimeout.
type stallDetector struct {
	clock func() time.Time
	// sendingSince is when the current send began, in nanoseconds; 0 if there is none.
	sendingSince atomic.Int64
	// largeUnsent counts the large responses that the network has not taken yet; lastProgress is when it last took one,
	// in nanoseconds.
	largeUnsent  atomic.Int32
	lastProgress atomic.Int64
}

// timeSend runs a send.
func (d *stallDetector) timeSend(send func() error) error {
	d.sendingSince.Store(d.clock().UnixNano())
	defer d.sendingSince.Store(0)
	return send()
}

// largeSendBegan and largeSendTaken count the large responses that the network has not taken yet.
func (d *stallDetector) largeSendBegan() {
	if d.largeUnsent.Add(1) == 1 {
		d.lastProgress.Store(d.clock().UnixNano())
	}
}

func (d *stallDetector) largeSendTaken() {
	d.lastProgress.Store(d.clock().UnixNano())
	d.largeUnsent.Add(-1)
}

// stalledFor returns for how long the client has taken no data. contended is true if other streams wait for the bytes
// of this client's account; if none does, a large response may take as long as it needs.
func (d *stallDetector) stalledFor(contended bool) time.Duration {
	since := d.sendingSince.Load()
	if since == 0 && contended && d.largeUnsent.Load() > 0 {
		since = d.lastProgress.Load()
	}
	if since == 0 {
		return 0
	}
	return d.clock().Sub(time.Unix(0, since))
}
