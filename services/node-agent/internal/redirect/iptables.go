package redirect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// prefix begins the names of all chains that iptables writes here.
const prefix = "FAIRLEAD_"

// multiport is how many ports one rule of iptables may compare.
const multiport = 15

// iptables writes rules by the programs of iptables. Each table of each family changes in one transaction.
type iptables struct {
	run Run
	// variant is "" for the machine's own choice, "legacy" or "nft".
	variant string
	// families are those of the machine's addresses.
	families []family
}

// family is an address family and the programs for it.
type family struct {
	six     bool
	program string
}

var ipv4, ipv6 = family{false, "iptables"}, family{true, "ip6tables"}

// Run runs a program with an input and returns its output. Its error has the program's error output.
type Run func(ctx context.Context, stdin, name string, args ...string) ([]byte, error)

// Exec is the Run of production.
func Exec(ctx context.Context, stdin, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.Bytes(), nil
}

// hostFamilies are the families of this network namespace's machine.
func hostFamilies() []family {
	if hasIPv6() {
		return []family{ipv4, ipv6}
	}
	return []family{ipv4}
}

// variants are the ones to try, the likeliest first: that whose rules the namespace already has.
func (t iptables) variants() []string {
	if t.variant != "" {
		return []string{"-" + t.variant}
	}
	if legacyInUse() {
		return []string{"-legacy", "", "-nft"}
	}
	return []string{"", "-nft", "-legacy"}
}

// legacyInUse reports whether this network namespace has tables of the legacy variant.
func legacyInUse() bool {
	for _, f := range []string{"ip_tables_names", "ip6_tables_names"} {
		if raw, err := os.ReadFile("/proc/thread-self/net/" + f); err == nil && len(bytes.TrimSpace(raw)) > 0 {
			return true
		}
	}
	return false
}

// choose returns the first variant that works here. Its error names every one that does not, with the reason.
func (t iptables) choose(ctx context.Context) (string, error) {
	var errs []error
	for _, v := range t.variants() {
		err := error(nil)
		for _, f := range t.families {
			if _, err = t.save(ctx, v, f, "nat"); err != nil {
				break
			}
		}
		if err == nil {
			return v, nil
		}
		if errors.Is(err, exec.ErrNotFound) {
			err = fmt.Errorf("%s is not installed", ipv4.program+v)
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("no iptables works: %w", errors.Join(errs...))
}

// save lists a table.
func (t iptables) save(ctx context.Context, variant string, f family, table string) (string, error) {
	out, err := t.run(ctx, "", f.program+variant+"-save", "-t", table)
	return string(out), err
}

var allTables = []string{"raw", "mangle", "nat"}

func (t iptables) apply(ctx context.Context, want []*chain) error {
	variant, err := t.choose(ctx)
	if err != nil {
		return err
	}
	for _, f := range t.families {
		if err := t.write(ctx, variant, f, want); err != nil {
			return err
		}
	}
	return nil
}

// check verifies chains that an earlier process has written.
func (t iptables) check(ctx context.Context, want []*chain) error {
	variant, err := t.choose(ctx)
	if err != nil {
		return err
	}
	for _, f := range t.families {
		for _, table := range allTables {
			rules := tableRules(table, f, want)
			if len(rules.chains) == 0 {
				continue
			}
			there, err := t.save(ctx, variant, f, table)
			if err == nil {
				err = rules.verify(table, parseSave(there))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// remove removes the chains of all variants that are installed.
func (t iptables) remove(ctx context.Context) error {
	var errs []error
	for _, v := range t.variants() {
		for _, f := range t.families {
			if err := t.write(ctx, v, f, nil); err != nil && !errors.Is(err, exec.ErrNotFound) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// write replaces the chains of one family, and verifies that they are in force.
func (t iptables) write(ctx context.Context, variant string, f family, want []*chain) error {
	for _, table := range allTables {
		rules := tableRules(table, f, want)
		there, err := t.save(ctx, variant, f, table)
		if err != nil {
			if len(rules.chains) == 0 && !errors.Is(err, exec.ErrNotFound) {
				continue // a table that does not exist holds nothing
			}
			return err
		}
		input := rules.restore(table, parseSave(there))
		if input == "" {
			continue
		}
		if _, err := t.run(ctx, input, f.program+variant+"-restore", "--wait=5", "--noflush"); err != nil {
			return err
		}
		if there, err = t.save(ctx, variant, f, table); err != nil {
			return err
		}
		if err := rules.verify(table, parseSave(there)); err != nil {
			return fmt.Errorf("%s%s: %w", f.program, variant, err)
		}
	}
	return nil
}

// saved are rules in iptables' language: chains in their order, with their rules, and jumps from the chains of the
// kernel to them.
type saved struct {
	chains []string
	rules  map[string][]string
	jumps  []string
}

// tableRules are the rules for a table of a family.
func tableRules(table string, f family, want []*chain) saved {
	out := saved{rules: map[string][]string{}}
	based := slices.DeleteFunc(slices.Clone(want), func(c *chain) bool { return c.hook == nil })
	slices.SortStableFunc(based, func(a, b *chain) int { return a.hook.priority - b.hook.priority })
	for _, c := range want {
		if c.table() != table {
			continue
		}
		name := chainName(c.name)
		out.chains = append(out.chains, name)
		for _, r := range c.rules {
			for _, line := range expand(r, f) {
				out.rules[name] = append(out.rules[name], "-A "+name+line)
			}
		}
	}
	for _, c := range based {
		if c.table() == table {
			out.jumps = append(out.jumps, strings.ToUpper(c.hook.at)+" -j "+chainName(c.name))
		}
	}
	return out
}

func chainName(name string) string { return prefix + strings.ToUpper(name) }

// table is the table of iptables that is called where the chain's hook is.
func (c *chain) table() string {
	switch {
	case c.hook == nil || c.hook.kind == "nat":
		return "nat"
	case c.hook == beforeTracking:
		return "raw"
	default:
		return "mangle"
	}
}

// parseSave reads what is ours of a table that iptables-save lists.
func parseSave(text string) saved {
	out := saved{rules: map[string][]string{}}
	for line := range strings.SplitSeq(text, "\n") {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case strings.HasPrefix(words[0], ":"+prefix):
			out.chains = append(out.chains, words[0][1:])
		case len(words) > 1 && words[0] == "-A" && strings.HasPrefix(words[1], prefix):
			out.rules[words[1]] = append(out.rules[words[1]], line)
		case len(words) == 4 && words[0] == "-A" && words[2] == "-j" && strings.HasPrefix(words[3], prefix):
			out.jumps = append(out.jumps, strings.Join(words[1:], " "))
		}
	}
	return out
}

// restore is the transaction that replaces what is there; "" if there is nothing and shall be nothing.
func (s saved) restore(table string, there saved) string {
	if len(s.chains) == 0 && len(there.chains) == 0 && len(there.jumps) == 0 {
		return ""
	}
	lines := []string{"*" + table}
	for _, c := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(s.chains, there.chains)))) {
		lines = append(lines, ":"+c+" - [0:0]") // this empties a chain that exists
	}
	for _, j := range there.jumps {
		lines = append(lines, "-D "+j)
	}
	for _, c := range there.chains {
		if !slices.Contains(s.chains, c) {
			lines = append(lines, "-X "+c)
		}
	}
	for _, c := range s.chains {
		lines = append(lines, s.rules[c]...)
	}
	for _, j := range s.jumps {
		lines = append(lines, "-A "+j)
	}
	return strings.Join(append(lines, "COMMIT"), "\n") + "\n"
}

// verify compares what is in force with what shall be: chains, the number of their rules, and what leads to them.
func (s saved) verify(table string, there saved) error {
	for _, c := range slices.Concat(s.chains, there.chains) {
		if len(there.rules[c]) != len(s.rules[c]) || slices.Contains(there.chains, c) != slices.Contains(s.chains, c) {
			return fmt.Errorf("%w: chain %s of table %s has %d rules, want %d: something else edits the table",
				ErrUnverified, c, table, len(there.rules[c]), len(s.rules[c]))
		}
	}
	byChain := func(jumps []string) []string {
		return slices.SortedStableFunc(slices.Values(jumps), func(a, b string) int { return strings.Compare(a[:1], b[:1]) })
	}
	if !slices.Equal(byChain(there.jumps), byChain(s.jumps)) {
		return fmt.Errorf("%w: table %s has the jumps %q, want %q: something else edits the table", ErrUnverified, table, there.jumps, s.jumps)
	}
	return nil
}

// expand is a rule in iptables' language, which has no sets: as many rules as there are combinations of values. It is
// nothing for a rule on addresses of the other family.
func expand(r rule, f family) []string {
	out := []string{""}
	for _, m := range r.matches {
		if f.six && m.is4() || !f.six && m.is6() {
			return nil
		}
		var next []string
		for _, one := range alternatives(m) {
			for _, line := range out {
				next = append(next, line+one)
			}
		}
		out = next
	}
	var lines []string
	for _, line := range out {
		for i, a := range r.actions {
			if a.verb == tproxyTo { // it marks, too, and ends the table
				lines = append(lines, fmt.Sprintf("%s -j TPROXY --on-port %d --tproxy-mark %d", line, a.number, r.actions[i+1].number))
				break
			}
			lines = append(lines, line+a.target())
		}
	}
	return lines
}

// alternatives are the matches of which one must hold.
func alternatives(m match) []string {
	not := ""
	if m.not {
		not = " !"
	}
	var out []string
	each := func(option string) []string {
		for _, n := range m.numbers {
			out = append(out, fmt.Sprintf(option, n))
		}
		return out
	}
	switch m.field {
	case inInterface, outInterface:
		option := map[field]string{inInterface: " -i ", outInterface: " -o "}[m.field]
		for _, n := range m.names {
			out = append(out, option+n)
		}
		return out
	case source, destination:
		option := map[field]string{source: " -s ", destination: " -d "}[m.field]
		for _, p := range m.prefixes {
			out = append(out, not+option+p.String())
		}
		return out
	case protocol:
		for _, n := range m.numbers {
			out = append(out, not+" -p "+protocolName(n))
		}
		return out
	case tcpPort:
		return ports(" -p "+protocolName(unix.IPPROTO_TCP), not, m.numbers)
	case udpPort:
		return ports(" -p "+protocolName(unix.IPPROTO_UDP), not, m.numbers)
	case anyPort:
		return ports("", not, m.numbers)
	case ownerUser:
		return each(" -m owner --uid-owner %d")
	case ownerGroup:
		return each(" -m owner --gid-owner %d")
	case packetMark:
		return each(" -m mark" + not + " --mark %d")
	case connectionMark:
		return each(" -m connmark" + not + " --mark %d")
	case replyDirection:
		return []string{" -m conntrack --ctdir REPLY"}
	default: // invalidState
		return []string{" -m conntrack --ctstate INVALID"}
	}
}

func ports(protocol, not string, numbers []uint32) []string {
	if len(numbers) == 1 {
		return []string{fmt.Sprintf("%s%s --dport %d", protocol, not, numbers[0])}
	}
	var out []string
	for some := range slices.Chunk(numbers, multiport) {
		texts := make([]string, len(some))
		for i, n := range some {
			texts[i] = fmt.Sprint(n)
		}
		out = append(out, fmt.Sprintf("%s -m multiport%s --dports %s", protocol, not, strings.Join(texts, ",")))
	}
	return out
}

// target is an action in iptables' language. Rules of other programs come after those of a chain that accepts, as in
// nftables, so accept returns to the chain of the kernel: no chain that another jumps to accepts.
func (a action) target() string {
	switch a.verb {
	case accept, back:
		return " -j RETURN"
	case drop:
		return " -j DROP"
	case jump:
		return " -j " + chainName(a.chain)
	case goTo:
		return " -g " + chainName(a.chain)
	case redirectTo:
		return fmt.Sprintf(" -j REDIRECT --to-ports %d", a.number)
	case notrack:
		return " -j CT --notrack"
	case markPacket:
		return fmt.Sprintf(" -j MARK --set-mark %d", a.number)
	default:
		return fmt.Sprintf(" -j CONNMARK --set-mark %d", a.number)
	}
}
