package gather

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/kinds"
)

// Print prints the description for people.
func (d *Description) Print(out io.Writer, now time.Time) error {
	w := &lines{out: out}
	if d.Pod != nil {
		w.add(0, "Pod %s.%s", d.Name, d.Namespace)
		d.Pod.print(w, now)
	}
	for i, s := range d.Services {
		if d.Pod != nil || i > 0 {
			w.add(0, "")
		}
		s.print(w)
	}
	w.add(0, "")
	if len(d.Findings) == 0 {
		w.add(0, "Findings: none")
	} else {
		w.add(0, "Findings:")
	}
	for _, f := range d.Findings {
		about := strings.TrimSpace(f.Object + " " + f.Field)
		if about != "" {
			about = " " + about
		}
		w.add(1, "%s %s%s: %s", f.Level, f.Code, about, f.Message)
	}
	if len(d.Unknown) > 0 {
		w.add(0, "\nNot known:")
	}
	for _, text := range d.Unknown {
		w.add(1, "%s", strings.Join(strings.Fields(text), " "))
	}
	return w.err
}

// lines writes indented lines; err is the first error.
type lines struct {
	out io.Writer
	err error
}

func (w *lines) add(depth int, form string, a ...any) {
	if _, err := fmt.Fprintf(w.out, strings.Repeat("  ", depth)+form+"\n", a...); err != nil {
		w.err = errors.Join(w.err, err)
	}
}

func (p *Pod) print(w *lines, now time.Time) {
	if p.Identity != "" {
		w.add(1, "Identity: %s", p.Identity)
	}
	switch {
	case p.Kind == "plain":
		w.add(1, "Proxy: none, it was not injected")
	case p.Proxy == nil:
		w.add(1, "Proxy: not connected to the control plane")
	default:
		var types []string
		for name, state := range p.Proxy.Types {
			types = append(types, name+" "+state)
		}
		slices.Sort(types)
		version := p.Proxy.Version
		if version != "" {
			version = " " + version
		}
		w.add(1, "Proxy:%s of %s, acknowledged revision %s: %s", version, p.Proxy.XDSServer, p.Proxy.Acked, strings.Join(types, ", "))
	}
	if c := p.Certificate; c != nil {
		left := c.NotAfter.Sub(now).Round(time.Minute)
		w.add(1, "Certificate: %s, serial %s, valid from %s until %s (%s left)", c.Identity, c.Serial, c.NotBefore.Format(time.RFC3339),
			c.NotAfter.Format(time.RFC3339), left)
	}
	for _, m := range p.MutualTLS {
		port, from := "ports", m.From
		if m.Port > 0 {
			port = fmt.Sprintf("port %d", m.Port)
		} else if len(p.MutualTLS) > 1 {
			port = "other ports"
		}
		if from == "" {
			from = "default"
		} else {
			from = "PeerAuthentication " + from
		}
		w.add(1, "Mutual TLS: %s %s (%s)", port, m.Mode, from)
	}
	for _, a := range p.Policies {
		detail := a.Detail
		if detail != "" {
			detail = ", " + detail
		}
		w.add(1, "%s %s/%s (of the %s%s)", a.Kind, a.Namespace, a.Name, a.Scope, detail)
	}
	for _, g := range p.Serves {
		w.add(1, "serves Gateway %s of the Gateway API, listeners %s: %s", g.Gateway, strings.Join(g.Listeners, ", "),
			strings.Join(g.Conditions, ", "))
	}
}

func (s Service) print(w *lines) {
	w.add(0, "Service %s.%s, host %s", s.Name, s.Namespace, s.Host)
	for _, p := range s.Pods {
		text := p.Kind
		if p.Proxy != "" {
			text += ", " + p.Proxy
		}
		w.add(1, "Pod %s (%s)", p.Name, strings.TrimPrefix(text, ", "))
	}
	if s.SeenBy != "" {
		w.add(1, "Rules as %s has them:", s.SeenBy)
	}
	for _, p := range s.Ports {
		name, protocol := p.Name, p.Protocol
		if name != "" {
			name = " " + name
		}
		if protocol == "" {
			protocol = "protocol detected"
		}
		w.add(1, "Port %d%s, %s, to %s", p.Port, name, protocol, p.TargetPort)
		if p.Server != "" {
			from := ""
			if p.ClientFrom != "" {
				from = " (DestinationRule " + p.ClientFrom + ")"
			}
			w.add(2, "mutual TLS: server %s, clients %s%s", p.Server, p.Client, from)
		}
		for _, r := range p.Rules {
			w.add(2, "%s %s%s", r.Kind, nameOf(r), where(r))
		}
		for _, r := range p.PassedOver {
			w.add(2, "passed over: %s %s: %s", r.Kind, nameOf(r), r.Detail)
		}
	}
	for _, sub := range s.Subsets {
		w.add(1, "Subset %s of DestinationRule %s, Pods: %d", sub.Name, sub.Rule, sub.Pods)
	}
	for _, g := range s.Gateways {
		missing := ""
		if g.Missing {
			missing = ", which does not exist"
		}
		w.add(1, "Gateway %s%s, by VirtualService %s, hosts %s", g.Gateway, missing, g.VirtualService, strings.Join(g.Hosts, ", "))
	}
	for _, r := range s.Routes {
		text := ""
		if len(r.Rules) > 0 {
			text = fmt.Sprintf(", rule %s of %d", strings.Join(lists.Map(r.Rules, strconv.Itoa), " and "), r.Of)
		}
		if len(r.Hostnames) > 0 {
			text += ", hosts " + strings.Join(r.Hostnames, ", ")
		}
		w.add(1, "%s %s%s", r.Kind, kinds.FullName(r.Namespace, r.Name), text)
		for _, p := range r.Parents {
			w.add(2, "%s", strings.Join(append([]string{"parent " + p.Parent}, p.Conditions...), ", "))
		}
	}
}

func nameOf(o contract.ExplainedObject) string { return kinds.FullName(o.Namespace, o.Name) }

// where is an object's place in a file or its generation.
func where(o contract.ExplainedObject) string {
	switch {
	case o.Location != "":
		return " (" + o.Location + ")"
	case o.Generation > 0:
		return fmt.Sprintf(" (generation %d)", o.Generation)
	}
	return ""
}
