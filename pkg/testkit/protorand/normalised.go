package protorand

import (
	_ "embed" // the seeds of accepted objects
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
)

// Normalised is the table for objects as config-watcher normalises them: full host names, in the namespaces x, y and
// istio-system.
var Normalised = func() *Table {
	table := Istio
	table.Values = maps.Clone(table.Values)
	for _, field := range []string{"hosts", "host", "VirtualService.hosts"} {
		table.Values[field] = NormalisedHosts
	}
	for _, field := range []string{"VirtualService.gateways", "HTTPMatchRequest.gateways", "L4MatchAttributes.gateways",
		"TLSMatchAttributes.gateways"} {
		table.Values[field] = []string{"mesh", "x/n1", "istio-system/n2"}
	}
	table.Values["Destination.host"] = NormalisedHosts[:4]
	table.Values["target_host"] = NormalisedHosts[:4]
	table.Values["IstioEgressListener.hosts"] = []string{"./*", "*/*", "x/*", "y/c.y.svc.cluster.local"}
	table.Values["TLSMatchAttributes.sni_hosts"] = NormalisedHosts[3:]
	return &table
}()

// NormalisedHosts are the hosts of Normalised; the last one is a wildcard.
var NormalisedHosts = []string{"a.x.svc.cluster.local", "b.x.svc.cluster.local", "c.y.svc.cluster.local", "shared.example.com",
	"*.wild.example.com"}

// accepted has a line per kind: its name, and the seeds of objects that config-watcher's validation accepts. A test of
// that keeps it true.
//
//go:embed accepted.txt
var accepted string

var seeds = sync.OnceValue(func() map[string][]uint64 {
	out := map[string][]uint64{}
	for line := range strings.Lines(accepted) {
		fields := strings.Fields(line)
		for _, text := range fields[1:] {
			if seed, err := strconv.ParseUint(text, 10, 64); err == nil {
				out[fields[0]] = append(out[fields[0]], seed)
			}
		}
	}
	return out
})

// Accepted returns the seeds with which FillSeeded makes an object of a kind that config-watcher's validation accepts.
func Accepted(kind string) []uint64 { return seeds()[kind] }

// FillSeeded is Fill with the random numbers of a seed. A quarter of the seeds draw odd values more often.
func (t *Table) FillSeeded(seed uint64, m proto.Message) {
	table := *t
	if table.Odd == 0 && seed/16%4 == 3 {
		table.Odd = 10
	}
	table.Fill(rand.New(rand.NewPCG(seed, 0)).IntN, m) //nolint:gosec // the same each time
}
