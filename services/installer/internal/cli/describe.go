package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/proto/fairlead/contract"

	"fairlead.dev/services/installer/internal/describe"
)

// description is what `fairlead describe` prints.
type description struct {
	Kind      string               `json:"kind"`
	Namespace string               `json:"namespace"`
	Name      string               `json:"name"`
	Pod       *podDescription      `json:"pod,omitempty"`
	Services  []serviceDescription `json:"services"`
	Findings  []finding            `json:"findings"`
	// Unknown says what could not be read, and why.
	Unknown []string `json:"unknown,omitempty"`
}

type podDescription struct {
	ServiceAccount string            `json:"serviceAccount,omitempty"`
	Identity       string            `json:"identity,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	// Kind is "sidecar", "gateway", "proxyless", or "plain" without a proxy; empty if it is not known.
	Kind        string               `json:"kind,omitempty"`
	Proxy       *proxyDescription    `json:"proxy,omitempty"`
	Certificate *workloadCertificate `json:"certificate,omitempty"`
	MutualTLS   []describe.PortMode  `json:"mutualTLS"`
	Policies    []describe.Applied   `json:"policies"`
}

type proxyDescription struct {
	XDSServer  string `json:"xdsServer"`
	Version    string `json:"version,omitempty"`
	Identity   string `json:"identity,omitempty"`
	Unverified bool   `json:"unverified,omitempty"`
	// Acked is the newest revision that it has acknowledged.
	Acked string `json:"acknowledged,omitempty"`
	// Types are the states of xDS types, as in proxy-status.
	Types map[string]string `json:"types"`
}

// workloadCertificate is the workload's own.
type workloadCertificate struct {
	Identity  string    `json:"identity"`
	Serial    string    `json:"serial"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
}

type serviceDescription struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Host      string            `json:"host"`
	Location  string            `json:"location,omitempty"`
	Pods      []podRow          `json:"pods"`
	Ports     []portDescription `json:"ports"`
	Subsets   []describe.Subset `json:"subsets,omitempty"`
	// SeenBy is the proxy whose view of the rules this is: visibility and Sidecars make them differ.
	SeenBy   string              `json:"seenBy,omitempty"`
	Gateways []describe.Exposure `json:"gateways"`
	// Routes are those of the Gateway API, which the mesh does not read.
	Routes []describe.Route `json:"routes,omitempty"`
}

type podRow struct {
	Name string `json:"name"`
	// Kind is that of podDescription; Proxy is "connected", "not connected" or empty.
	Kind  string `json:"kind,omitempty"`
	Proxy string `json:"proxy,omitempty"`
}

type portDescription struct {
	Port       int32  `json:"port"`
	Name       string `json:"name,omitempty"`
	TargetPort string `json:"targetPort,omitempty"`
	// Protocol is what the name or appProtocol says; empty if proxies detect it.
	Protocol string `json:"protocol,omitempty"`
	// Server is the mode of mutual TLS of the Pods, Client how clients connect, and ClientFrom the DestinationRule that
	// says so.
	Server     string `json:"server,omitempty"`
	Client     string `json:"client,omitempty"`
	ClientFrom string `json:"clientFrom,omitempty"`
	// Rules are the objects that clients' routes and clusters were made from; PassedOver have no part in them.
	Rules      []contract.ExplainedObject `json:"rules"`
	PassedOver []contract.ExplainedObject `json:"passedOver,omitempty"`
}

// finding is something that is wrong.
type finding struct {
	Level   string `json:"level"`
	Code    string `json:"code"`
	Object  string `json:"object,omitempty"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

// describeFlags are the flags of `fairlead describe`.
type describeFlags struct {
	namespace, from, binDir string
	out                     *format
}

func newDescribe(env Env, t *target) *cobra.Command {
	return group("describe", "Show what of the mesh concerns a Pod or a Service, and what is wrong with it",
		newDescribeKind(env, t, "pod", "po", "pods"), newDescribeKind(env, t, "service", "svc", "services"))
}

func newDescribeKind(env Env, t *target, kind string, aliases ...string) *cobra.Command {
	f := describeFlags{out: newFormat("json", "yaml")}
	cmd := &cobra.Command{
		Use:     kind + " NAME[.NAMESPACE]",
		Aliases: aliases,
		Short:   "Show which objects apply to a " + strings.ToUpper(kind[:1]) + kind[1:] + ", its mutual TLS, and what is wrong with it",
		Long: `Show which objects apply to a Pod or a Service: VirtualServices, DestinationRules and Sidecars, as the proxy of a client has them, Gateways that lead
there, PeerAuthentications, policies, EnvoyFilters and Telemetries; in a cluster also routes of the Gateway API, with their parents, which another
controller may serve: the mesh does not read them. It shows the certificate and the state of its proxy; the mode of mutual TLS of each port, and
how clients connect. Then it lists what is wrong: findings of ` + "`fairlead analyze`" +
			` about these objects, and what the running proxies show.

Rules are those that one proxy has: that of --from, else that of a Pod described or behind the Service, else another one of the mesh.

Exit code 0, whatever is found; 1 if there is no such Pod or Service. What cannot be read is named at the end.`,
		Example: `  fairlead describe ` + kind + ` reviews` + map[string]string{"pod": "-v1-0"}[kind] + `.default
  fairlead describe ` + kind + ` reviews` + map[string]string{"pod": "-v1-0"}[kind] + ` -n default --from productpage-v1-0 -o json`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			d := &describer{env: env, t: t, f: f, d: &description{Kind: map[string]string{"pod": "Pod", "service": "Service"}[kind],
				Services: []serviceDescription{}, Findings: []finding{}}}
			if err := d.describe(cmd.Context(), a[0]); err != nil {
				return err
			}
			if f.out.value != "" {
				return printTree(cmd.OutOrStdout(), f.out.value, d.d)
			}
			return d.d.print(cmd.OutOrStdout(), time.Now())
		},
	}
	cmd.ValidArgsFunction = t.completeServices(0)
	if kind == "pod" {
		cmd.ValidArgsFunction = t.completeProxies(1)
	}
	fs := cmd.Flags()
	t.namespaceFlag(cmd, &f.namespace, "namespace, if NAME does not say (default \"default\")")
	fs.StringVar(&f.from, "from", "", "proxy whose view of the rules is shown, NAME.NAMESPACE or the beginning of one")
	fs.StringVar(&f.binDir, "bin-dir", "", "directory of the programs (default: that of fairlead)")
	outputFlag(cmd, f.out)
	t.registerServers(fs)
	t.registerCluster(cmd)
	return cmd
}

// print prints the description for people.
func (d *description) print(out io.Writer, now time.Time) error {
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

func (p *podDescription) print(w *lines, now time.Time) {
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
}

func (s serviceDescription) print(w *lines) {
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
			w.add(2, "%s %s%s", r.Kind, objectID(r), where(r))
		}
		for _, r := range p.PassedOver {
			w.add(2, "passed over: %s %s: %s", r.Kind, objectID(r), r.Detail)
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
		w.add(1, "%s %s%s (not of this mesh)", r.Kind, fullName(r.Namespace, r.Name), text)
		for _, p := range r.Parents {
			w.add(2, "%s", strings.Join(append([]string{"parent " + p.Parent}, p.Conditions...), ", "))
		}
	}
}

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
