package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// maxIndex bounds the indexes of clusters: their ranges are of 100.64.0.0/10.
const maxIndex = 15

// addresses are those of a cluster, of ranges that no network of this machine has.
type addresses struct {
	// node is the first node's, second that of the one that Join adds; both are of a /24 of the cluster.
	node, second netip.Addr
	// pods is the range of all Pods, nodePods that of the first node's.
	pods, nodePods netip.Prefix
	services       netip.Prefix
	// balancers is the range of the addresses of load balancers, of the nodes' network.
	balancers netip.Prefix
	dns       netip.Addr
}

// addressesOf are the addresses of the cluster with an index, 0 to maxIndex: those of different indexes do not overlap.
// Ranges are for documentation and benchmarks (0), else of addresses that carriers share (RFC 6598).
func addressesOf(index int) addresses {
	nodes, pods, services := netip.AddrFrom4([4]byte{192, 0, 2, 0}), netip.AddrFrom4([4]byte{198, 18}), netip.AddrFrom4([4]byte{198, 19})
	if index > 0 {
		second := byte(64 + 4*(index-1)) //nolint:gosec // an index is small
		nodes = netip.AddrFrom4([4]byte{100, second, 0, 0})
		pods, services = netip.AddrFrom4([4]byte{100, second + 1}), netip.AddrFrom4([4]byte{100, second + 2})
	}
	return addresses{
		node: last(nodes, 10), second: last(nodes, 11), pods: netip.PrefixFrom(pods, 16), nodePods: netip.PrefixFrom(pods, 24),
		services: netip.PrefixFrom(services, 16), balancers: netip.PrefixFrom(last(nodes, 128), 26), dns: last(services, 10),
	}
}

// last is an IPv4 address with another last byte.
func last(ip netip.Addr, b byte) netip.Addr {
	raw := ip.As4()
	raw[3] = b
	return netip.AddrFrom4(raw)
}

func (a addresses) api() netip.AddrPort { return netip.AddrPortFrom(a.node, 6443) }

// indexFile has the cluster's index; Up writes it.
func (d Dir) indexFile() string { return d.Path("index") }

// balancerFile is there in a cluster that gives Services of type LoadBalancer addresses; Up writes it.
func (d Dir) balancerFile() string { return d.Path("balancer") }

// Balancers is the range of the addresses of the cluster's load balancers.
func (d Dir) Balancers() (netip.Prefix, error) {
	at, err := d.addresses()
	return at.balancers, err
}

// writeIndex makes the cluster the one with an index.
func (d Dir) writeIndex(index int) error {
	return os.WriteFile(d.indexFile(), []byte(strconv.Itoa(index)+"\n"), 0o644)
}

// Index is the one that the cluster was started with.
func (d Dir) Index() (int, error) {
	raw, err := os.ReadFile(d.indexFile())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w in %s", ErrNotUp, d)
	}
	if err != nil {
		return 0, err
	}
	index, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", d.indexFile(), err)
	}
	return index, CheckIndex(index)
}

// CheckIndex says what is wrong with an index.
func CheckIndex(index int) error {
	if index < 0 || index > maxIndex {
		return fmt.Errorf("the index of a cluster is %d; give --index, or CLUSTER_INDEX, a number from 0 to %d", index, maxIndex)
	}
	return nil
}

// addresses are those of a cluster that Up has begun to start.
func (d Dir) addresses() (addresses, error) {
	index, err := d.Index()
	return addressesOf(index), err
}
