package redirect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// Run runs a program with an input and returns its output. Its error has the program's error output. Tests replace
// Exec.
type Run func(ctx context.Context, stdin, name string, args ...string) ([]byte, error)

// Exec is the Run of production.
func Exec(ctx context.Context, stdin, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("%w: install nftables and iproute2 in the image that runs this", err)
		}
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.Bytes(), nil
}

// ErrUnverified is returned when the kernel does not list the rules that it has just accepted.
var ErrUnverified = errors.New("the rules are not in force")

// Plan describes what Apply does, for people.
func Plan(o *Options) string {
	var b strings.Builder
	b.WriteString("# nft -f -\n" + script(chains(o)))
	if hasIPv6Loopback() && len(chains(o)) > 0 {
		fmt.Fprintf(&b, "# ip %s\n", strings.Join(passthroughAddress("replace"), " "))
	}
	if o.Mode == TProxy {
		for _, family := range families() {
			for _, args := range routing(o, family, "add") {
				fmt.Fprintf(&b, "# ip %s\n", strings.Join(args, " "))
			}
		}
	}
	return b.String()
}

// Apply replaces the rules in this network namespace and verifies that they are in force. The rules change in one
// transaction, so that no connection meets a part of them.
func Apply(ctx context.Context, o *Options, run Run) error {
	want := chains(o)
	if _, err := run(ctx, script(want), "nft", "-f", "-"); err != nil {
		return err
	}
	for _, family := range families() {
		unroute(ctx, o, family, run)
		if o.Mode != TProxy {
			continue
		}
		for _, args := range routing(o, family, "add") {
			if _, err := run(ctx, "", "ip", args...); err != nil {
				return err
			}
		}
	}
	if len(want) == 0 {
		_, _ = run(ctx, "", "ip", passthroughAddress("del")...) // as in Remove
		return nil
	}
	if hasIPv6Loopback() {
		if _, err := run(ctx, "", "ip", passthroughAddress("replace")...); err != nil {
			return err
		}
	}
	return verify(ctx, want, run)
}

// Remove removes what Apply has added, if anything.
func Remove(ctx context.Context, o *Options, run Run) error {
	for _, family := range families() {
		unroute(ctx, o, family, run)
	}
	_, _ = run(ctx, "", "ip", passthroughAddress("del")...) // an error means that there is none
	_, err := run(ctx, script(nil), "nft", "-f", "-")
	return err
}

// verify compares the chains in the kernel with those wanted.
func verify(ctx context.Context, want []*chain, run Run) error {
	raw, err := run(ctx, "", "nft", append([]string{"-j", "list", "table"}, strings.Fields(table)...)...)
	if err != nil {
		return err
	}
	var listing struct {
		Items []struct {
			Chain *struct{ Name, Hook string } `json:"chain"`
			Rule  *struct{ Chain string }      `json:"rule"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal(raw, &listing); err != nil {
		return fmt.Errorf("what nft lists is not JSON: %w", err)
	}
	hooks, rules := map[string]string{}, map[string]int{}
	for _, item := range listing.Items {
		if item.Chain != nil {
			hooks[item.Chain.Name] = item.Chain.Hook
		}
		if item.Rule != nil {
			rules[item.Rule.Chain]++
		}
	}
	for _, c := range want {
		hook, there := hooks[c.name]
		if !there || (hook == "") != (c.hook == "") || rules[c.name] != len(c.rules) {
			return fmt.Errorf("%w: chain %s of table %s has %d rules on hook %q, want %d: something else edits the table",
				ErrUnverified, c.name, table, rules[c.name], hook, len(c.rules))
		}
	}
	return nil
}

// families are ip's options for the address families of this machine.
func families() []string {
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		return []string{"-4"}
	}
	return []string{"-4", "-6"}
}

// hasIPv6Loopback reports whether the loopback interface has IPv6.
func hasIPv6Loopback() bool {
	off, err := os.ReadFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6")
	return err == nil && strings.TrimSpace(string(off)) == "0"
}

// passthroughAddress are ip's arguments for passthroughV6. Unlike passthroughV4, which is in 127.0.0.0/8, it must be
// added to the loopback interface.
func passthroughAddress(verb string) []string {
	return []string{"-6", "addr", verb, passthroughV6 + "/128", "dev", "lo"}
}

// routing are ip's arguments for the routes of TPROXY, which deliver marked packets to this machine whatever their
// address.
func routing(o *Options, family, verb string) [][]string {
	mark, table := strconv.FormatUint(uint64(o.Mark), 10), strconv.FormatUint(uint64(o.Table), 10)
	return [][]string{
		{family, "rule", verb, "fwmark", mark, "lookup", table},
		{family, "route", verb, "local", "default", "dev", "lo", "table", table},
	}
}

// unroute deletes the routes of TPROXY, if there are any.
func unroute(ctx context.Context, o *Options, family string, run Run) {
	for _, args := range routing(o, family, "del") {
		_, _ = run(ctx, "", "ip", args...)
	}
}
