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

// World is Istio's table for meshes that are normalised already: hosts in full, in the namespaces x, y and istio-system.
var World = func() *Table {
	table := Istio
	table.Values = maps.Clone(table.Values)
	for _, field := range []string{"hosts", "host", "VirtualService.hosts"} {
		table.Values[field] = WorldHosts
	}
	for _, field := range []string{"VirtualService.gateways", "HTTPMatchRequest.gateways", "L4MatchAttributes.gateways", "TLSMatchAttributes.gateways"} {
		table.Values[field] = []string{"mesh", "x/n1", "istio-system/n2"}
	}
	table.Values["Destination.host"] = WorldHosts[:4]
	table.Values["target_host"] = WorldHosts[:4]
	table.Values["IstioEgressListener.hosts"] = []string{"./*", "*/*", "x/*", "y/c.y.svc.cluster.local"}
	table.Values["TLSMatchAttributes.sni_hosts"] = WorldHosts[3:]
	return &table
}()

// WorldHosts are the hosts of World; the last one is a wildcard.
var WorldHosts = []string{"a.x.svc.cluster.local", "b.x.svc.cluster.local", "c.y.svc.cluster.local", "shared.example.com", "*.wild.example.com"}

// accepted has a line per kind: its name, and the seeds of objects that config-watcher's validation accepts. A test of that keeps it true.
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

// Accepted are the seeds with which FillSeeded makes an object of a kind that validation accepts.
func Accepted(kind string) []uint64 { return seeds()[kind] }

// FillSeeded is Fill with the random numbers of a seed. Sixteen seeds of 64 draw odd values far more often than usually.
func (t *Table) FillSeeded(seed uint64, m proto.Message) {
	table := *t
	if table.Odd == 0 && seed/16%4 == 3 {
		table.Odd = 10
	}
	table.Fill(rand.New(rand.NewPCG(seed, 0)).IntN, m) //nolint:gosec // the same each time
}
