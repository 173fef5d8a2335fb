package balance

import "math"

// The slack: a replica may have this much more than the mean before it gives streams away. Random balancing of
// connections leaves a replica about the square root of the mean off; correcting that would move streams for ever.
const (
	tolerance = 0.05
	minSlack  = 5
)

const (
	// steadyRounds is for how many rounds in a row a peer must have been ready before it counts. By then the load
	// balancer knows it too.
	steadyRounds = 2
	// expectedArrivals is how many of the streams given away should by chance have reached a peer before it counts as
	// unreachable for them.
	expectedArrivals = 10
)

// Load is what a replica tells of itself.
type Load struct {
	// Instance is unique for each run of the process.
	Instance string
	// Streams is the number of open streams. InTransit is the number of streams that were given away recently and may
	// not have reconnected yet.
	Streams, InTransit int
	// Ready is false while the replica should not get proxies.
	Ready bool
}

// decision is the result of one round.
type decision struct {
	// excess is how many streams should be given away; target is how many must stay in any case.
	excess, target int
	// share is the mean over the replicas that count, this one included.
	share    float64
	replicas int
}

// policy decides, round by round, how many streams a replica should give away. It has no clock and no network: the
// caller passes the answers of the peers.
type policy struct {
	peers map[string]*peerRecord
}

// peerRecord is what is known of a peer from earlier rounds.
type peerRecord struct {
	streams int
	// ready is for how many rounds in a row the peer has been ready.
	ready int
	// below is true if the peer had less than the mean.
	below bool
	// unansweredMoves is how many streams this replica has given away while the peer was below the mean, since the peer
	// last had more streams than in the round before.
	unansweredMoves int
}

func newPolicy() *policy { return &policy{peers: map[string]*peerRecord{}} }

// decide evaluates one round. It ignores the answer of this replica and repeated ones. Each replica decides for itself
// and gives away no more than takes it down to the mean. That is safe whatever the others do meanwhile, because streams
// in transit count as if they were still at the replica that has given them away.
func (pol *policy) decide(own Load, answers []Load) decision {
	counted := pol.update(own, answers)
	limit := expectedArrivals * (len(counted) + 1)
	for {
		total, n := own.Streams+own.InTransit, len(counted)+1
		for _, p := range counted {
			total += p.Streams + p.InTransit
		}
		share := float64(total) / float64(n)
		var reachable []Load
		for _, p := range counted {
			r := pol.peers[p.Instance]
			if r.below = float64(p.Streams+p.InTransit) < share; !r.below {
				r.unansweredMoves = 0
			}
			if r.unansweredMoves < limit {
				reachable = append(reachable, p)
			}
		}
		if len(reachable) < len(counted) {
			counted = reachable
			continue
		}
		v := decision{share: share, replicas: n, target: int(math.Ceil(share))}
		if own.Ready && n > 1 {
			v.excess = excess(own.Streams, share)
		}
		return v
	}
}

// update brings the records up to date and returns the peers that count.
func (pol *policy) update(own Load, answers []Load) []Load {
	known := pol.peers
	pol.peers = make(map[string]*peerRecord, len(answers))
	var counted []Load
	for _, p := range answers {
		if p.Instance == own.Instance || pol.peers[p.Instance] != nil {
			continue
		}
		r := known[p.Instance]
		if r == nil {
			r = &peerRecord{}
		}
		pol.peers[p.Instance] = r
		if !p.Ready {
			*r = peerRecord{}
			continue
		}
		if p.Streams > r.streams {
			r.unansweredMoves = 0
		}
		r.streams = p.Streams
		if r.ready++; r.ready >= steadyRounds {
			counted = append(counted, p)
		}
	}
	return counted
}

// streamsMoved is called with the number of streams that were given away after the last decision.
func (pol *policy) streamsMoved(n int) {
	for _, r := range pol.peers {
		if r.below {
			r.unansweredMoves += n
		}
	}
}

// excess is how many streams above the mean a replica should give away: none within the slack, else all of them.
func excess(own int, share float64) int {
	if float64(own) <= share+slack(share) {
		return 0
	}
	return own - int(math.Ceil(share))
}

func slack(share float64) float64 { return max(tolerance*share, math.Sqrt(share), minSlack) }
