package fairshare

import "time"

// State of a place tells Policies what it is used for at the moment.
type State int

// States. Places begin Idle.
const (
	Idle State = iota
	Busy
	// Fixed places are lost to nobody, and do not count when a Policy compares owners.
	Fixed
)

// Place is one place of a Pool, which an owner holds or waits for.
type Place struct {
	pool  *Pool
	cost  int64
	large bool
	// onLoss is called when the place is lost; nil if nobody wants to know.
	onLoss func()
	// decided is closed when the place is held or displaced; nil if it has not had to wait.
	decided chan struct{}

	// The pool's mu guards what follows. owner is nil once the place has been released or lost.
	owner *owner
	// number orders places by age.
	number        uint64
	since, spared time.Time
	state         State
	held, lost    bool
}

// Release gives the place back, or stops its waiting. Calls after the first, or after the loss, do nothing.
func (pl *Place) Release() {
	pl.pool.mu.Lock()
	defer pl.pool.mu.Unlock()
	pl.release()
}

func (pl *Place) release() {
	switch {
	case pl.owner == nil:
		return
	case pl.held:
		pl.pool.drop(pl)
	default:
		pl.pool.leave(pl)
	}
	pl.pool.give()
}

// Lost reports whether another owner has got the place.
func (pl *Place) Lost() bool {
	pl.pool.mu.Lock()
	defer pl.pool.mu.Unlock()
	return pl.lost
}

// Since is when the place was got.
func (pl *Place) Since() time.Time {
	pl.pool.mu.Lock()
	defer pl.pool.mu.Unlock()
	return pl.since
}

// Set changes the state of a place that is held. It returns false if the place has been lost or released.
func (pl *Place) Set(state State) bool {
	pl.pool.mu.Lock()
	defer pl.pool.mu.Unlock()
	if pl.owner == nil {
		return false
	}
	pl.owner.fixed += fixed(state) - fixed(pl.state)
	pl.state = state
	pl.pool.held.sizes.put(pl.owner)
	return true
}

// Renew makes the place the newest of its owner.
func (pl *Place) Renew() {
	pl.pool.mu.Lock()
	defer pl.pool.mu.Unlock()
	if o := pl.owner; o != nil {
		pl.pool.held.remove(pl)
		pl.pool.held.add(o.name, pl)
	}
}

// Spare spares the place for so long from now on, in place of Config.Spare.
func (pl *Place) Spare(d time.Duration) {
	pl.pool.mu.Lock()
	defer pl.pool.mu.Unlock()
	pl.spared = pl.pool.cfg.Clock.Now().Add(d)
}

// tell calls onLoss. It is called without mu.
func (pl *Place) tell() {
	if pl != nil && pl.onLoss != nil {
		pl.onLoss()
	}
}
