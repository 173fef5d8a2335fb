// Package share divides traffic between groups of endpoints by weights. Package normalise asks it where the endpoints
// of a registry join a Service.
package share

// total is about the sum of the weights of all endpoints. It is large enough for shares of a percent among some
// thousand endpoints, and far below what Envoy can add up.
const total = 10_000_000

// Endpoint is one of a group.
type Endpoint struct {
	// Weight is relative to those of the others of the group; 0 means 1.
	Weight uint32
	Ready  bool
}

// Weights returns the weights by which the endpoints of a group that are ready get a share of all traffic, in percent,
// each as much of it as its own weight says. Endpoints that are not ready weigh as if they were. If no endpoint of a
// group is ready, all traffic goes to other groups whatever these weigh.
func Weights(group []Endpoint, percent uint32) []uint32 {
	var ready, all uint64
	for _, e := range group {
		w := uint64(max(e.Weight, 1))
		all += w
		if e.Ready {
			ready += w
		}
	}
	if ready == 0 {
		ready = all
	}
	out := make([]uint32, len(group))
	for i, e := range group {
		w := uint64(max(e.Weight, 1)) * total / 100 * uint64(percent) / ready
		out[i] = uint32(min(max(w, 1), total))
	}
	return out
}
