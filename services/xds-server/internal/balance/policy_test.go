package balance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestExcess(t *testing.T) {
	for name, tc := range map[string]struct {
		own   int
		share float64
		want  int
	}{
		"nothing anywhere":                 {0, 0, 0},
		"below the share":                  {400, 500, 0},
		"at the share":                     {500, 500, 0},
		"within five percent":              {525, 500, 0},
		"above it":                         {526, 500, 26},
		"down to the mean, rounded up":     {600, 500.2, 99},
		"a few streams are no excess":      {10, 5, 0},
		"one more is":                      {11, 5, 6},
		"what chance does is no excess":    {110, 100, 0},
		"more than that is":                {111, 100, 11},
		"all of it, however much":          {3000, 500, 2500},
		"the slack of many streams":        {10_500, 10_000, 0},
		"and of one more":                  {10_501, 10_000, 501},
		"a share below one stream is kept": {7, 0.5, 6},
	} {
		t.Run(name, func(t *testing.T) {
			if got := excess(tc.own, tc.share); got != tc.want {
				t.Errorf("%d of %g streams: got %d to move, want %d", tc.own, tc.share, got, tc.want)
			}
		})
	}
}

func ready(instance string, streams int) Load {
	return Load{Instance: instance, Streams: streams, Ready: true}
}

func TestDecide(t *testing.T) {
	draining := ready("own", 900)
	draining.Ready = false
	fresh := Load{Instance: "b"}
	transit := ready("b", 100)
	transit.InTransit = 500
	for name, tc := range map[string]struct {
		own Load
		// rounds are the answers of each round; the last decision is compared.
		rounds   [][]Load
		want     int
		replicas int
	}{
		"no peer answers":                   {ready("own", 900), [][]Load{{}, {}}, 0, 1},
		"only itself answers":               {ready("own", 900), [][]Load{{ready("own", 900)}, {ready("own", 900)}}, 0, 1},
		"balanced":                          {ready("own", 500), [][]Load{{ready("b", 500)}, {ready("b", 500)}}, 0, 2},
		"too many":                          {ready("own", 900), [][]Load{{ready("b", 100)}, {ready("b", 100)}}, 400, 2},
		"too few":                           {ready("own", 100), [][]Load{{ready("b", 900)}, {ready("b", 900)}}, 0, 2},
		"a peer that is ready for one time": {ready("own", 900), [][]Load{{}, {ready("b", 100)}}, 0, 1},
		"a peer without configuration":      {ready("own", 900), [][]Load{{fresh}, {fresh}, {fresh}}, 0, 1},
		"a peer that was not ready between": {ready("own", 900), [][]Load{{ready("b", 0)}, {ready("b", 0)}, {fresh}, {ready("b", 0)}}, 0, 1},
		"a peer that did not answer once":   {ready("own", 900), [][]Load{{ready("b", 0)}, {ready("b", 0)}, {}, {ready("b", 0)}}, 0, 1},
		"a peer that answers twice":         {ready("own", 900), [][]Load{{ready("b", 100)}, {ready("b", 100), ready("b", 100)}}, 400, 2},
		"on the way out itself":             {draining, [][]Load{{ready("b", 100)}, {ready("b", 100)}}, 0, 2},
		"streams under way still count":     {ready("own", 900), [][]Load{{transit}, {transit}}, 150, 2},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPolicy()
			var v decision
			for _, answers := range tc.rounds {
				v = p.decide(tc.own, answers)
			}
			if v.excess != tc.want || v.replicas != tc.replicas {
				t.Errorf("got %d to move among %d, want %d among %d", v.excess, v.replicas, tc.want, tc.replicas)
			}
		})
	}
}

// A peer that no stream ever reaches, because proxies do not know it, does not count after a while; otherwise streams
// would be moved for ever. It counts again as soon as it gains a stream.
func TestPeerThatCannotBeReached(t *testing.T) {
	p := newPolicy()
	own, peers := ready("own", 1000), []Load{ready("b", 1000), ready("c", 0)}
	p.decide(own, peers)
	moved := 0
	for range 100 {
		v := p.decide(own, peers)
		p.streamsMoved(v.excess)
		moved += v.excess // they all come back
	}
	if limit := 334 + expectedArrivals*3; moved == 0 || moved > limit {
		t.Errorf("%d streams moved in vain, want at most %d", moved, limit)
	}
	peers[1].Streams = 1
	if v := p.decide(own, peers); v.excess == 0 || v.replicas != 3 {
		t.Errorf("the peer has gained a stream: got %+v", v)
	}
}

// simulation has replicas, and streams that reconnect at random, in rounds.
type simulation struct {
	rand    *rand.Rand
	judges  []*policy
	streams [][]int // the numbers of the streams of each replica, oldest first
	// back is when streams in transit arrive, counted in turns of replicas from now.
	back  map[int][]int
	turn  int
	moves []int // of each stream
}

func newWorld(r *rand.Rand, loads []int) *simulation {
	w := &simulation{rand: r, back: map[int][]int{}, streams: make([][]int, len(loads))}
	for i, n := range loads {
		w.judges = append(w.judges, newPolicy())
		for range n {
			w.streams[i] = append(w.streams[i], len(w.moves))
			w.moves = append(w.moves, 0)
		}
	}
	return w
}

func (w *simulation) load(i, inTransit int) Load {
	return Load{Instance: fmt.Sprint(i), Streams: len(w.streams[i]), InTransit: inTransit, Ready: true}
}

// round lets every replica decide once, one after the other. Some decide while the streams of others are in transit.
func (w *simulation) round() (moved int, _ error) {
	n := len(w.judges)
	inTransit := make([]int, n) // of this round: those of the last one have arrived
	mean := float64(len(w.moves)) / float64(n)
	for _, i := range w.rand.Perm(n) {
		for _, stream := range w.back[w.turn] {
			to := w.rand.IntN(n)
			w.streams[to] = append(w.streams[to], stream)
		}
		delete(w.back, w.turn)
		var answers []Load
		for p := range n {
			answers = append(answers, w.load(p, inTransit[p]))
		}
		v := w.judges[i].decide(w.load(i, inTransit[i]), answers)
		most, before := slices.Max(w.counts()), len(w.streams[i])
		if float64(most) <= mean+slack(mean) && v.excess > 0 {
			return moved, fmt.Errorf("%d streams of %d move although all are balanced: %v", v.excess, i, w.counts())
		}
		if float64(before-v.excess) < mean && v.excess > 0 {
			return moved, fmt.Errorf("replica %d goes from %d to %d, below the mean of %g: %v", i, before, before-v.excess, mean, w.counts())
		}
		for _, stream := range w.streams[i][:v.excess] {
			w.moves[stream]++
			at := w.turn + 1 + w.rand.IntN(n)
			at = min(at, w.turn-w.turn%n+n) // back when the next round begins, at the latest
			w.back[at] = append(w.back[at], stream)
		}
		w.streams[i] = slices.Clone(w.streams[i][v.excess:])
		w.judges[i].streamsMoved(v.excess)
		inTransit[i] = v.excess
		moved += v.excess
		w.turn++
	}
	return moved, nil
}

func (w *simulation) counts() []int {
	var counts []int
	for _, s := range w.streams {
		counts = append(counts, len(s))
	}
	return counts
}

// settle runs rounds until nothing has moved for several of them.
func (w *simulation) settle(most int) (rounds, moved int, err error) {
	for quiet := 0; quiet < 3; rounds++ {
		if rounds > most {
			return rounds, moved, fmt.Errorf("not balanced after %d rounds: %v", rounds, w.counts())
		}
		n, err := w.round()
		if err != nil {
			return rounds, moved, err
		}
		moved += n
		quiet++
		if n > 0 || rounds < steadyRounds {
			quiet = 0
		}
	}
	return rounds - 3, moved, nil
}

// From any distribution, with replicas that decide at different moments and streams that reconnect anywhere: no replica
// goes below the mean, all come within the slack, and then nothing moves.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		loads := rapid.SliceOfN(rapid.IntRange(0, 1500), 2, 8).Draw(t, "loads")
		seed := rapid.Uint64().Draw(t, "seed")
		w := newWorld(rand.New(rand.NewPCG(seed, 1)), loads)
		if _, _, err := w.settle(300); err != nil {
			t.Fatal(err)
		}
		counts, mean := w.counts(), float64(len(w.moves))/float64(len(loads))
		if most := float64(slices.Max(counts)); most > mean+slack(mean) {
			t.Fatalf("%v settled as %v", loads, counts)
		}
	})
}

// surplus is what the replicas have above the mean and the slack.
func (w *simulation) surplus() (n float64) {
	mean := float64(len(w.moves)) / float64(len(w.streams))
	for _, s := range w.streams {
		n += max(0, float64(len(s))-mean-slack(mean))
	}
	return n
}

// The surplus shrinks geometrically, by the moved streams that do not return to a replica with too many. Because the
// oldest streams are moved first, hardly any moves more than once.
func TestConvergesGeometricallyWithFewMoves(t *testing.T) {
	for name, tc := range map[string]struct {
		loads []int
		// ratio is the most of the surplus that is left after a round; moves is the most moves in all, perStream those
		// of one stream.
		ratio            float64
		moves, perStream int
	}{
		"3 to 6":                {[]int{1000, 1000, 1000, 0, 0, 0}, 0.75, 3300, 2},
		"2 to 3":                {[]int{1500, 1500, 0}, 0.85, 3300, 2},
		"9 to 10":               {[]int{334, 334, 334, 333, 333, 333, 333, 333, 333, 0}, 0.97, 3000, 2},
		"one restarted of 6":    {[]int{600, 600, 600, 600, 600, 0}, 0.92, 3300, 2},
		"all on one of 6":       {[]int{3000, 0, 0, 0, 0, 0}, 0.4, 3300, 2},
		"small, and one of two": {[]int{40, 0}, 0.75, 60, 2},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				w := newWorld(rand.New(rand.NewPCG(seed, 7)), tc.loads)
				noise := float64(len(tc.loads)) * math.Sqrt(float64(len(w.moves))/float64(len(tc.loads)))
				rounds, moved, bound := 0, 0, w.surplus()
				for quiet := 0; quiet < 4; rounds++ {
					n, err := w.round()
					if err != nil {
						t.Fatal(err)
					}
					if quiet++; n > 0 {
						quiet = 0
					}
					moved += n
					if left := w.surplus(); rounds >= steadyRounds-1 && left > bound+noise {
						t.Fatalf("seed %d: the surplus after round %d is %g, want at most %g: %v", seed, rounds, left, bound+noise, w.counts())
					}
					if rounds >= steadyRounds-1 {
						bound *= tc.ratio
					}
				}
				rounds -= 4
				if most := slices.Max(w.moves); most > tc.perStream || moved > tc.moves {
					t.Errorf("seed %d: %d rounds, %d moves, %d of one stream: %v", seed, rounds, moved, most, w.counts())
				}
				if seed == 0 {
					ratio := float64(slices.Max(w.counts())) / (float64(len(w.moves)) / float64(len(tc.loads)))
					t.Logf("%d rounds, %d moves, at most %d of one stream, max/mean %.3f", rounds, moved, slices.Max(w.moves), math.Round(ratio*1000)/1000)
				}
			}
		})
	}
}
