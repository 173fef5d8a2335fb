package balance

import "math"

// What counts as balanced: a replica may have this much more than its share before it gives any away. Random balancing alone leaves a
// replica about the root of its share off; chasing that would move streams for ever.
const (
	tolerance = 0.05
	minSlack  = 5
)

const (
	// steadyRounds is for how many rounds in a row a peer must have been ready before it counts, so that whoever balances connections has
	// heard of it.
	steadyRounds = 2
	// expectedArrivals is how many of the streams moved should by chance have come to a peer before it is held to be out of their reach.
	expectedArrivals = 10
)

// Load is what a replica says of itself.
type Load struct {
	// Instance is unique per process run.
	Instance string
	// Streams are open. InTransit have been ended lately to be rid of them and may not be back elsewhere yet.
	Streams, InTransit int
	// Ready is false while the replica should not be sent proxies.
	Ready bool
}

// verdict is what one round comes to.
type verdict struct {
	// move is how many streams should go; target is how many must stay in any case.
	move, target int
	// share is the mean over the replicas that count, the own one included.
	share    float64
	replicas int
}

// judge decides, round by round, how many streams a replica should give away. It has no clock: it is told what the peers answered.
type judge struct {
	peers map[string]*peerRecord
}

// record is what is known of a peer from the rounds before.
type peerRecord struct {
	streams int
	// ready is for how many rounds it has been so.
	ready int
	// below is true if the peer had less than its share.
	below bool
	// tried is how many streams were moved, while it was below, since it last had more than the round before.
	tried int
}

func newJudge() *judge { return &judge{peers: map[string]*peerRecord{}} }

// decide looks at one round's answers; the own replica's and repeated ones among them are ignored. Each replica decides for itself: it
// gives away down to the mean and never below, whatever the others do meanwhile, because streams under way count as if they were still
// where they came from.
func (j *judge) decide(own Load, answers []Load) verdict {
	counted := j.update(own, answers)
	limit := expectedArrivals * (len(counted) + 1)
	for {
		total, n := own.Streams+own.InTransit, len(counted)+1
		for _, p := range counted {
			total += p.Streams + p.InTransit
		}
		share := float64(total) / float64(n)
		var reachable []Load
		for _, p := range counted {
			r := j.peers[p.Instance]
			if r.below = float64(p.Streams+p.InTransit) < share; !r.below {
				r.tried = 0
			}
			if r.tried < limit {
				reachable = append(reachable, p)
			}
		}
		if len(reachable) < len(counted) {
			counted = reachable
			continue
		}
		v := verdict{share: share, replicas: n, target: int(math.Ceil(share))}
		if own.Ready && n > 1 {
			v.move = excess(own.Streams, share)
		}
		return v
	}
}

// take brings the records up to date and returns the peers that count.
func (j *judge) update(own Load, answers []Load) []Load {
	known := j.peers
	j.peers = make(map[string]*peerRecord, len(answers))
	var counted []Load
	for _, p := range answers {
		if p.Instance == own.Instance || j.peers[p.Instance] != nil {
			continue
		}
		r := known[p.Instance]
		if r == nil {
			r = &peerRecord{}
		}
		j.peers[p.Instance] = r
		if !p.Ready {
			*r = peerRecord{}
			continue
		}
		if p.Streams > r.streams {
			r.tried = 0
		}
		r.streams = p.Streams
		if r.ready++; r.ready >= steadyRounds {
			counted = append(counted, p)
		}
	}
	return counted
}

// moved tells how many streams were given away after the last decision.
func (j *judge) moved(n int) {
	for _, r := range j.peers {
		if r.below {
			r.tried += n
		}
	}
}

// excess is how many streams above the share a replica should give away: none within the slack, else all of them.
func excess(own int, share float64) int {
	if float64(own) <= share+slack(share) {
		return 0
	}
	return own - int(math.Ceil(share))
}

func slack(share float64) float64 { return max(tolerance*share, math.Sqrt(share), minSlack) }
