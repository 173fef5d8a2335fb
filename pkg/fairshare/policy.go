package fairshare

import (
	"slices"
	"time"
)

// Policy chooses the place that makes room for a newcomer's; nil if the newcomer gets none. from is the owner with the
// most places, or the newcomer itself if it has as many as one may have. A Policy changes nothing.
type Policy func(from, newcomer *owner, now time.Time) *Place

func idle(pl *Place) bool    { return pl.state == Idle }
func losable(pl *Place) bool { return pl.state != Fixed }

// Newest takes the newest place of an owner that keeps at least as many as the newcomer then has. It is for requests
// and streams whose callers come again later.
func Newest(from, newcomer *owner, _ time.Time) *Place {
	if from.len() <= newcomer.len()+1 {
		return nil
	}
	for _, newest := range slices.Backward(from.places) {
		if losable(newest) {
			return newest
		}
	}
	return nil
}

// Oldest takes the oldest place, because those who prove nothing stay the longest. A place that is spared is taken only
// if its owner keeps at least as many as the newcomer then has.
func Oldest(from, newcomer *owner, now time.Time) *Place {
	victim := from.oldest(losable)
	if victim == nil || from.len() <= newcomer.len()+1 && now.Before(victim.spared) {
		return nil
	}
	return victim
}

// OldestIdle takes the oldest place that is Idle, or the oldest of all if none is. It is the newcomer's own if nobody
// has more, so that a newcomer always gets a place, unless all are Fixed.
func OldestIdle(from, newcomer *owner, _ time.Time) *Place {
	if from.len() <= newcomer.len() {
		from = newcomer
	}
	if victim := from.oldest(idle); victim != nil {
		return victim
	}
	return from.oldest(losable)
}

// OldestUnfixed takes the oldest place that is not Fixed from an owner that has more of them. The newcomer's own is
// taken only if the newcomer has as many as one may have, and then it is one that is Idle and spared no longer.
func OldestUnfixed(from, newcomer *owner, now time.Time) *Place {
	if from == newcomer {
		if victim := from.oldest(idle); victim != nil && !now.Before(victim.spared) {
			return victim
		}
		return nil
	}
	if from.len() <= newcomer.len() {
		return nil
	}
	return from.oldest(losable)
}
