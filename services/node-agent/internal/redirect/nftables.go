package redirect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// tableName is the nftables table, of family inet, that holds all rules, so that other rules stay untouched.
const tableName = "fairlead"

// nft writes rules by netlink. The kernel takes a batch as one transaction.
type nft struct{}

// numbering guards the numbers that the library gives sets.
var numbering sync.Mutex

// replace is the transaction that replaces the table by one with these chains; it removes the table if there are none.
// It returns what the rules are made of, by chain, for verify.
func (nft) replace(want []*chain) (map[string][][]expr.Any, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	conn.AddTable(table) // an absent one could not be deleted
	conn.DelTable(table)
	if len(want) > 0 {
		conn.AddTable(table)
	}
	made := map[string]*nftables.Chain{}
	for _, c := range want { // all, before rules that jump to them
		made[c.name] = conn.AddChain(kernelChain(table, c))
	}
	numbering.Lock()
	defer numbering.Unlock()
	rules, err := compileAll(want, func(s *nftables.Set, elements []nftables.SetElement) error {
		s.Table = table
		return conn.AddSet(s, elements)
	}, func(chain string, exprs []expr.Any) {
		conn.AddRule(&nftables.Rule{Table: table, Chain: made[chain], Exprs: exprs})
	})
	if err != nil {
		return nil, err
	}
	if err := conn.Flush(); err != nil {
		return nil, fmt.Errorf("write nftables rules by netlink: %w", err)
	}
	return rules, nil
}

// compileAll compiles the rules of all chains. It calls addSet for the sets of a rule, and then addRule.
func compileAll(want []*chain, addSet func(*nftables.Set, []nftables.SetElement) error, addRule func(chain string, exprs []expr.Any)) (
	map[string][][]expr.Any, error) {
	rules := map[string][][]expr.Any{}
	for _, c := range want {
		for _, r := range c.rules {
			exprs, err := compile(r, addSet)
			if err != nil {
				return nil, fmt.Errorf("rule %q: %w", r, err)
			}
			addRule(c.name, exprs)
			rules[c.name] = append(rules[c.name], exprs)
		}
	}
	return rules, nil
}

func kernelChain(table *nftables.Table, c *chain) *nftables.Chain {
	out := &nftables.Chain{Name: c.name, Table: table}
	if c.hook == nil {
		return out
	}
	out.Type, out.Priority = nftables.ChainType(c.hook.kind), nftables.ChainPriorityRef(nftables.ChainPriority(c.hook.priority))
	out.Hooknum, out.Policy = nftables.ChainHookPrerouting, new(nftables.ChainPolicyAccept)
	if c.hook.at == "output" {
		out.Hooknum = nftables.ChainHookOutput
	}
	return out
}

func (n nft) apply(_ context.Context, want []*chain) error {
	rules, err := n.replace(want)
	if err != nil || len(want) == 0 {
		return err
	}
	return n.verify(want, rules)
}

// check verifies chains that an earlier process has written.
func (n nft) check(_ context.Context, want []*chain) error {
	rules, err := compileAll(want, func(*nftables.Set, []nftables.SetElement) error { return nil }, func(string, []expr.Any) {})
	if err != nil {
		return err
	}
	return n.verify(want, rules)
}

func (n nft) remove(context.Context) error {
	_, err := n.replace(nil)
	return err
}

// verify compares the chains in the kernel with those wanted: their hooks, and what each of their rules is made of.
func (nft) verify(want []*chain, rules map[string][][]expr.Any) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	all, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return fmt.Errorf("list nftables chains by netlink: %w", err)
	}
	there := map[string]*nftables.Chain{}
	for _, c := range all {
		if c.Table.Name == tableName {
			there[c.Name] = c
		}
	}
	for _, c := range want {
		meant := kernelChain(nil, c)
		got := there[c.name]
		if got == nil || got.Type != meant.Type || !equal(got.Hooknum, meant.Hooknum) || !equal(got.Priority, meant.Priority) {
			return fmt.Errorf("%w: chain %s of table inet %s is not as it was written: something else edits the table", ErrUnverified, c.name,
				tableName)
		}
		found, err := ruleNames(c.name)
		if err != nil {
			return err
		}
		wanted := make([]string, len(rules[c.name]))
		for i, exprs := range rules[c.name] {
			wanted[i] = names(exprs)
		}
		if !slices.Equal(found, wanted) {
			return fmt.Errorf("%w: chain %s of table inet %s has %d rules, %q, want %d, %q: something else edits the table",
				ErrUnverified, c.name, tableName, len(found), found, len(wanted), wanted)
		}
	}
	return nil
}

func equal[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// names are the kernel's names of expressions.
func names(exprs []expr.Any) string {
	out := make([]string, len(exprs))
	for i, e := range exprs {
		raw, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err == nil {
			out[i], err = attribute(raw, unix.NFTA_EXPR_NAME)
		}
		if err != nil {
			return err.Error()
		}
	}
	return strings.Join(out, " ")
}

// ruleNames lists the rules of a chain, each as the names of its expressions. It does not use the library's GetRules,
// which cannot read tproxy expressions (v0.3.0).
func ruleNames(chain string) ([]string, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_RULE_TABLE, Data: append([]byte(tableName), 0)}, {Type: unix.NFTA_RULE_CHAIN, Data: append([]byte(chain), 0)},
	})
	if err != nil {
		return nil, err
	}
	replies, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, attrs...),
	})
	if err != nil {
		return nil, fmt.Errorf("list nftables rules by netlink: %w", err)
	}
	var out []string
	for _, reply := range replies {
		var kinds []string
		err := each(reply.Data[4:], unix.NFTA_RULE_EXPRESSIONS, func(list []byte) error {
			return each(list, unix.NFTA_LIST_ELEM, func(e []byte) error {
				kind, err := attribute(e, unix.NFTA_EXPR_NAME)
				kinds = append(kinds, kind)
				return err
			})
		})
		if err != nil {
			return nil, fmt.Errorf("list nftables rules by netlink: %w", err)
		}
		out = append(out, strings.Join(kinds, " "))
	}
	return out, nil
}

// each calls f with all attributes of a kind.
func each(raw []byte, kind uint16, f func([]byte) error) error {
	attrs, err := netlink.UnmarshalAttributes(raw)
	if err != nil {
		return err
	}
	for _, a := range attrs {
		if a.Type&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == kind {
			if err := f(a.Data); err != nil {
				return err
			}
		}
	}
	return nil
}

// attribute is the text of the first attribute of a kind.
func attribute(raw []byte, kind uint16) (text string, err error) {
	err = each(raw, kind, func(data []byte) error {
		text = strings.TrimRight(string(data), "\x00")
		return nil
	})
	return text, err
}

// refused reports whether the kernel has no nftables, or not all that the rules need: other backends may work.
func refused(err error) bool {
	return !errors.Is(err, os.ErrPermission) && !errors.Is(err, ErrUnverified)
}
