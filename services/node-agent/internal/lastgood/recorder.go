package lastgood

import "slices"

// maxPending bounds the responses of a stream that wait for Envoy's answer; an xds-server sends one for each type.
const maxPending = 32

// Types without which a proxy serves nothing. Every Envoy asks for them.
const (
	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
)

// Recorder follows one stream of Envoy and records in its Keeper what Envoy accepts. Package relay calls Request and
// Response for every message that it forwards, each from one goroutine at a time.
type Recorder struct {
	keeper *Keeper
	delta  bool
	// asked are the types that Envoy has asked for on this stream, with the names of its last request. pending are the
	// responses that Envoy has not answered. The Keeper's lock guards both.
	asked   map[string][]string
	pending map[string]answer
}

// answer is a response that waits for its ACK.
type answer struct {
	nonce   string
	message []byte
}

// Stream begins to follow a stream of Envoy.
func (k *Keeper) Stream(delta bool) *Recorder {
	return &Recorder{keeper: k, delta: delta, asked: map[string][]string{}, pending: map[string]answer{}}
}

// Response takes note of a response for Envoy. The Recorder keeps message.
func (r *Recorder) Response(message []byte) {
	url, nonce := string(field(message, listType)), string(field(message, listNonce))
	r.keeper.mu.Lock()
	defer r.keeper.mu.Unlock()
	if _, known := r.pending[url]; nonce == "" || r.keeper.full || !known && len(r.pending) == maxPending {
		return
	}
	r.pending[url] = answer{nonce: nonce, message: message}
}

// Request takes note of a request of Envoy: of what Envoy holds, which its first requests of a stream say, and of ACKs.
func (r *Recorder) Request(message []byte) {
	req := parse(message, r.delta)
	k := r.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(r.asked) == 0 && !req.holds() {
		k.begin()
	}
	_, seen := r.asked[req.url]
	if !seen && len(r.asked) == maxTypes {
		return
	}
	r.asked[req.url] = req.names
	if !seen && req.nonce == "" {
		if r.delta {
			k.retain(req.url, req.held)
		}
		if req.holds() {
			k.settled[req.url] = true
		}
	}
	p, waiting := r.pending[req.url]
	if !waiting || p.nonce != req.nonce {
		return
	}
	delete(r.pending, req.url)
	if req.rejected != "" {
		return
	}
	if r.delta {
		k.acceptDelta(req.url, p.message)
	} else {
		k.acceptSotW(req.url, p.message, req.names)
	}
	k.settled[req.url], k.confirmed = true, k.cfg.Clock.Now()
	k.touch()
}

// acceptDelta applies a DeltaDiscoveryResponse. The caller holds the lock.
func (k *Keeper) acceptDelta(url string, message []byte) {
	to := k.current.of(url)
	for resource := range repeated(message, listResources) {
		if name := string(field(resource, resourceName)); name != "" {
			k.set(to, name, slices.Clone(resource))
		}
	}
	for name := range repeated(message, listRemoved) {
		k.remove(to, string(name))
	}
}

// acceptSotW applies a DiscoveryResponse. Names that Envoy subscribes to bound the resources of a type; without names
// the response has all of them. The caller holds the lock.
func (k *Keeper) acceptSotW(url string, message []byte, names []string) {
	to := k.current.of(url)
	to.version = string(field(message, listVersion))
	stay := map[string]bool{} // a set, since a workload has thousands of names
	for _, name := range names {
		stay[name] = true
	}
	for body := range repeated(message, listResources) {
		name, resource, err := wrap(body, to.version)
		if err != nil {
			continue // Envoy has accepted it, so it has another way to name it
		}
		stay[name] = true
		k.set(to, name, resource)
	}
	for name := range to.resources {
		if !stay[name] {
			k.remove(to, name)
		}
	}
}
