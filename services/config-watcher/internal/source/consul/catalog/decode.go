package catalog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
)

// Bounds of answers.
const (
	// MaxReply bounds the body of an answer, in bytes, and maxEntry what is decoded of it at once.
	MaxReply = 64 << 20
	maxEntry = 1 << 20
	// maxAtOnce bounds the answers together that are being decoded.
	maxAtOnce = 256 << 20
	// MaxServices bounds the names of a catalog, maxPairs and maxTags what an instance has; Consul admits 64 pairs.
	MaxServices = 50_000
	maxPairs    = 256
	maxTags     = 10_000
)

var (
	errTooLarge = fmt.Errorf("the answer is larger than %d MiB", MaxReply>>20)
	errEntry    = fmt.Errorf("one entry of the answer is larger than %d MiB", maxEntry>>20)
	errAtOnce   = fmt.Errorf("the answers that come at once are larger than %d MiB", maxAtOnce>>20)
	errTrailing = errors.New("something follows the JSON value")
)

// bounded reads an answer within the bounds.
type bounded struct {
	from io.Reader
	size int64
	// until is how far may be read for the entry that is decoded now.
	until int64
	// all counts the bytes of all answers that are being decoded; close takes those of this one out again.
	all *atomic.Int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	switch {
	case b.size > MaxReply:
		return 0, errTooLarge
	case b.size > b.until:
		return 0, errEntry
	case b.all.Load() > maxAtOnce:
		return 0, errAtOnce
	}
	n, err := b.from.Read(p)
	b.size += int64(n)
	b.all.Add(int64(n))
	return n, err
}

// entry begins an entry. A decoder has read a little of it already.
func (b *bounded) entry() { b.until = b.size + maxEntry }

func (b *bounded) close() { b.all.Add(-b.size) }

// entry is what health/service answers for an instance, as far as it is read.
type entry struct {
	Node struct {
		Node, Datacenter, Address string
		TaggedAddresses           map[string]string
		Meta                      map[string]string
		Locality                  *Locality
	}
	Service struct {
		Kind, ID, Service, Address string
		Port                       int
		Ports                      []struct {
			Name string
			Port int
		}
		TaggedAddresses map[string]Address
		Tags            []string
		Meta            map[string]string
		Weights         *Weights
		Locality        *Locality
	}
	Checks []struct{ CheckID, Status string }
}

// decodeInstances reads the answer of health/service, one instance at a time, sorted.
func decodeInstances(from *bounded, service string) ([]Instance, error) {
	d := json.NewDecoder(from)
	if err := open(d, '['); err != nil {
		return nil, err
	}
	var out []Instance
	for d.More() {
		from.entry()
		var e entry
		if err := d.Decode(&e); err != nil {
			return nil, err
		}
		switch i := e.instance(); {
		case i.Node == "" || i.ID == "":
			return nil, errors.New("an instance has no node or no id")
		case max(len(i.Meta), len(i.NodeMeta), len(i.TaggedAddresses), len(i.NodeTaggedAddresses), len(i.Ports)) > maxPairs,
			len(i.Tags) > maxTags:
			return nil, fmt.Errorf("instance %q of node %q has more tags, meta, addresses or ports than Consul admits", i.ID, i.Node)
		case i.Service == service:
			out = append(out, i)
		case !strings.EqualFold(i.Service, service): // Consul answers for all names that differ in case alone
			return nil, fmt.Errorf("the answer is about service %q", i.Service)
		}
	}
	if err := end(d); err != nil {
		return nil, err
	}
	slices.SortFunc(out, Compare)
	for i := 1; i < len(out); i++ {
		if out[i].key() == out[i-1].key() {
			return nil, fmt.Errorf("instance %q of node %q is there twice", out[i].ID, out[i].Node)
		}
	}
	return slices.Clip(out), nil
}

// decodeNames reads the answer of catalog/services: names, of which each has a list of tags, sorted.
func decodeNames(from *bounded) ([]string, error) {
	d := json.NewDecoder(from)
	if err := open(d, '{'); err != nil {
		return nil, err
	}
	var out []string
	for d.More() {
		from.entry()
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, ok := t.(string)
		if !ok {
			return nil, fmt.Errorf("%v in the place of a name", t)
		}
		var tags []string
		if err := d.Decode(&tags); err != nil {
			return nil, err
		}
		if out = append(out, name); len(out) > MaxServices {
			return nil, fmt.Errorf("the catalog has more than %d services", MaxServices)
		}
	}
	if err := end(d); err != nil {
		return nil, err
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func open(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	if t != want {
		return fmt.Errorf("%v in the place of %v", t, want)
	}
	return nil
}

// end reads the end of the value that open began, and of the answer.
func end(d *json.Decoder) error {
	if _, err := d.Token(); err != nil {
		return err
	}
	switch _, err := d.Token(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return errTrailing
}

func (e *entry) instance() Instance {
	s, n := &e.Service, &e.Node
	i := Instance{
		Node: n.Node, Datacenter: n.Datacenter, NodeAddress: n.Address,
		NodeTaggedAddresses: orNil(n.TaggedAddresses), NodeMeta: orNil(n.Meta),
		ID: s.ID, Service: s.Service, Kind: s.Kind, Address: s.Address, Port: s.Port, TaggedAddresses: orNil(s.TaggedAddresses),
		Meta: orNil(s.Meta), Weights: Weights{1, 1}, Status: e.status(),
	}
	if len(s.Tags) > 0 {
		i.Tags = s.Tags
	}
	if s.Weights != nil {
		i.Weights = *s.Weights
	}
	for _, l := range []*Locality{n.Locality, s.Locality} {
		if l != nil && *l != (Locality{}) {
			i.Locality = *l
		}
	}
	for _, p := range s.Ports {
		if i.Ports == nil {
			i.Ports = make(map[string]int, len(s.Ports))
		}
		i.Ports[p.Name] = p.Port
	}
	return i
}

// orNil makes empty maps equal, which streaming and other answers of one agent write differently.
func orNil[V any](m map[string]V) map[string]V {
	if len(m) == 0 {
		return nil
	}
	return m
}

// Checks by which Consul puts a node or an instance into maintenance mode.
const (
	nodeMaintenance    = "_node_maintenance"
	serviceMaintenance = "_service_maintenance:"
)

func (e *entry) status() string {
	worst := Passing
	for _, c := range e.Checks {
		switch {
		case c.CheckID == nodeMaintenance, strings.HasPrefix(c.CheckID, serviceMaintenance):
			return Maintenance
		case c.Status == Passing:
		case c.Status == Warning && worst == Passing:
			worst = Warning
		case c.Status != Warning:
			worst = Critical
		}
	}
	return worst
}
