package redirect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/google/nftables"
)

// ErrUnverified is returned when the kernel does not list the rules that it has just accepted.
var ErrUnverified = errors.New("the rules are not in force")

// Backend is how rules get into the kernel.
type Backend string

// The backends. Auto is NFTables where the kernel has it, and IPTables otherwise.
const (
	Auto           Backend = "auto"
	NFTables       Backend = "nftables"
	IPTables       Backend = "iptables"
	IPTablesLegacy Backend = "iptables-legacy"
	IPTablesNFT    Backend = "iptables-nft"
)

func programs(b Backend, run Run) iptables {
	return iptables{run: run, variant: strings.TrimPrefix(strings.TrimPrefix(string(b), string(IPTables)), "-"), families: hostFamilies()}
}

// Plan describes what Apply does, for people.
func Plan(o *Options) string {
	want := chains(o)
	if o.Backend == Auto || o.Backend == NFTables {
		return "# nft -f -\n" + script(want) + routePlan(o)
	}
	var b strings.Builder
	for _, f := range hostFamilies() {
		fmt.Fprintf(&b, "# %s-restore --noflush\n", f.program)
		for _, table := range allTables {
			b.WriteString(tableRules(table, f, want).restore(table, saved{}))
		}
	}
	return b.String() + routePlan(o)
}

// Apply replaces the rules in this network namespace, verifies that they are in force, and returns the backend that
// wrote them. With nftables the rules change in one transaction, so that no connection meets a part of them; with
// iptables those of each table and address family do.
func Apply(ctx context.Context, o *Options, run Run) (Backend, error) {
	used, err := write(ctx, o, nft{}, run)
	if errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("%w: it needs CAP_NET_ADMIN in the user namespace that owns the network namespace", err)
	}
	return used, err
}

// kernel writes rules without programs; nft implements it.
type kernel interface {
	apply(ctx context.Context, want []*chain) error
	remove(ctx context.Context) error
}

func write(ctx context.Context, o *Options, native kernel, run Run) (Backend, error) {
	if err := setRoutes(o, o.Mode == TProxy); err != nil {
		return o.Backend, err
	}
	if hasIPv6Loopback() {
		if err := setPassthrough(o.Mode != None); err != nil {
			return o.Backend, err
		}
	}
	want := chains(o)
	if o.Backend != Auto && o.Backend != NFTables {
		if err := native.remove(ctx); err != nil && !refused(err) {
			return o.Backend, err
		}
		return o.Backend, programs(o.Backend, run).apply(ctx, want)
	}
	err := native.apply(ctx, want)
	switch {
	case err == nil:
		return NFTables, removeOther(ctx, run)
	case o.Backend == NFTables || !refused(err):
		return NFTables, err
	}
	if otherwise := programs(IPTables, run).apply(ctx, want); otherwise != nil {
		return IPTables, fmt.Errorf("neither nftables nor iptables can redirect traffic here: load the kernel's modules nf_tables and "+
			"nft_redir, or those of iptables on the node: %w",
			errors.Join(err, otherwise))
	}
	return IPTables, nil
}

// Check verifies that the rules of an earlier Apply with the same options are in force.
func Check(ctx context.Context, o *Options, run Run) error {
	want := chains(o)
	if o.Backend != Auto && o.Backend != NFTables {
		return programs(o.Backend, run).check(ctx, want)
	}
	err := nft{}.check(ctx, want)
	if err == nil || o.Backend == NFTables || !legacyInUse() {
		return err
	}
	return programs(IPTables, run).check(ctx, want)
}

// removeOther removes the rules of iptables, after those of nftables have come. It runs no program if there are none.
func removeOther(ctx context.Context, run Run) error {
	if !legacyInUse() {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		all, err := conn.ListChains()
		if err != nil {
			return fmt.Errorf("list nftables chains by netlink: %w", err)
		}
		ours := false
		for _, c := range all {
			ours = ours || strings.HasPrefix(c.Name, prefix)
		}
		if !ours {
			return nil
		}
	}
	return programs(IPTables, run).remove(ctx)
}

// Remove removes what Apply has added with any backend, if anything.
func Remove(ctx context.Context, o *Options, run Run) error {
	if err := setRoutes(o, false); err != nil {
		return err
	}
	if err := setPassthrough(false); err != nil {
		return err
	}
	err := nft{}.remove(ctx)
	if err != nil && !refused(err) {
		return err
	}
	if err != nil { // without nftables there are rules of the legacy variant alone
		return programs(IPTablesLegacy, run).remove(ctx)
	}
	return removeOther(ctx, run)
}
