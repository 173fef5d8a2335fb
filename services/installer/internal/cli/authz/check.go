package authz

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	rules "fairlead.dev/pkg/authz"
	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/authzview"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/structured"
)

// The characters of the names of headers, in small letters (RFC 9110, token).
const (
	headerMarks      = "!#$%&'*+-.^_`|~"
	headerCharacters = headerMarks + "0123456789abcdefghijklmnopqrstuvwxyz"
)

// checkFlags are the flags of `fairlead authz check`.
type checkFlags struct {
	source
	namespace                string
	headers, claims, answers []string
	sourceIP, remoteIP       string
	plaintext, exitCode      bool
	said                     authzview.Request
	out                      *output.Format
}

func newCheck(env command.Env, flags *meshflags.Flags) *cobra.Command {
	f := &checkFlags{source: source{env: env, flags: flags}, out: output.New("json", "yaml")}
	cmd := &cobra.Command{
		Use:   "check [FROM] TO [METHOD PATH]",
		Short: "Say which policy and rule allows or denies a request, and why no other does",
		Long: `Say which policy and rule allows or denies a request, and why no other does, by the rules that proxies get. The mesh is one that runs, or that of
-f. With TO alone, the policies that apply to it are listed, as by istioctl x authz check.

FROM is a workload or Pod (NAME.NAMESPACE, pod/NAME, deploy/NAME), a service account (sa/NAME.NAMESPACE), a SPIFFE id, or "outside" for a caller
without a certificate. TO is a workload, a Pod, a Service (also svc/NAME) or its host. Workloads behind a Service to which different policies apply
are answered one by one.

What is not said is taken as absent, and named where a rule compares it: METHOD is then GET, and PATH is /. A claim is that of a token which its
RequestAuthentication finds valid; a value that begins with [ or { is JSON, and [a][b] names a claim within another.

Exit code 0 whatever the answer is; with --exit-code 1 for a request that is denied anywhere.`,
		Example: `  fairlead authz check web.shop reviews.shop GET /reviews/1
  fairlead authz check outside ingressgateway.istio-system GET / --host a.example.com --claim iss=https://issuer.example.com
  fairlead authz check sa/web.shop svc/db.shop --port 5432 --tcp
  fairlead authz check -f mesh/ web reviews POST /admin --header x-team=blue -o json
  fairlead authz check reviews-v1.shop`,
		Args:              command.Args(checkArgs),
		ValidArgsFunction: f.complete(),
		RunE: func(cmd *cobra.Command, a []string) error {
			if err := f.parse(a); err != nil {
				return process.Usage(err)
			}
			mesh, err := f.read(cmd)
			if err != nil {
				return err
			}
			return f.run(cmd, mesh, a)
		},
	}
	fs := cmd.Flags()
	f.add(cmd)
	flags.AddNamespace(cmd, &f.namespace, "namespace of names that state none")
	fs.StringArrayVar(&f.headers, "header", nil, "`NAME=VALUE` of a header; may be repeated, for one header too")
	fs.StringArrayVar(&f.claims, "claim", nil, "`NAME=VALUE` of a claim of the request's token; may be repeated")
	fs.StringVar(&f.said.Host, "host", "", "host of the request, with its port if the client sends it")
	fs.Uint32Var(&f.said.Port, "port", 0, "port of the Service, or of the workload (default: the Service's only one)")
	fs.BoolVar(&f.said.TCP, "tcp", false, "the request is a connection of which the proxy sees no requests")
	fs.StringVar(&f.said.SNI, "sni", "", "server name that the client asks for")
	fs.StringVar(&f.sourceIP, "source-ip", "", "address of the connection (default: that of the calling Pod, if it is known)")
	fs.StringVar(&f.remoteIP, "remote-ip", "", "address of the client behind trusted proxies (default: that of the connection)")
	fs.BoolVar(&f.plaintext, "plaintext", false, "the caller speaks plain text, and so shows no certificate")
	fs.StringArrayVar(&f.answers, "answer", nil, "`PROVIDER=allow|refuse`, what a provider of CUSTOM policies answers; may be repeated")
	fs.BoolVar(&f.exitCode, "exit-code", false, "exit with 1 if the request is denied")
	output.Flag(cmd, f.out)
	return cmd
}

func checkArgs(_ *cobra.Command, a []string) error {
	switch len(a) {
	case 1, 2, 4:
		return nil
	case 3:
		return fmt.Errorf("after FROM and TO come METHOD and PATH, not %q alone", a[2])
	}
	return fmt.Errorf("name TO, or FROM and TO, or FROM, TO, METHOD and PATH, not %d arguments", len(a))
}

func (f *checkFlags) complete() complete.Func {
	names := f.completeNames(2, authzview.Nobody[0])
	methods := []string{http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodPatch, http.MethodPost, http.MethodPut}
	return func(cmd *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(a) == 2 {
			return complete.WithPrefix(methods, begun), cobra.ShellCompDirectiveNoFileComp
		}
		return names(cmd, a, begun)
	}
}

func (f *checkFlags) run(cmd *cobra.Command, mesh *authzview.Mesh, a []string) error {
	out := cmd.OutOrStdout()
	to, err := mesh.Target(a[min(1, len(a)-1)], f.namespace)
	if err != nil {
		return err
	}
	if len(a) == 1 {
		listings := mesh.List(to)
		if f.out.Value != "" {
			return structured.Print(out, f.out.Value, listings)
		}
		return authzview.PrintListings(out, listings)
	}
	from, err := mesh.Caller(a[0], f.namespace)
	if err != nil {
		return err
	}
	if f.plaintext {
		from.Principal = ""
	}
	answer, err := mesh.Check(from, to, f.said)
	if err != nil {
		return err
	}
	if f.out.Value != "" {
		err = structured.Print(out, f.out.Value, answer)
	} else {
		err = answer.Print(out)
	}
	for _, r := range answer.Results {
		if err == nil && f.exitCode && r.Outcome == rules.Denied.String() {
			err = errNo{r.Outcome}
		}
	}
	return err
}

// parse reads the arguments and flags about the request.
func (f *checkFlags) parse(a []string) (err error) {
	if len(a) == 4 {
		f.said.Method, f.said.Path = a[2], a[3]
		switch {
		case f.said.TCP:
			return fmt.Errorf("--tcp: a connection has no METHOD and no PATH; leave %s %s out", a[2], a[3])
		case !strings.HasPrefix(a[3], "/") && a[3] != "*":
			return fmt.Errorf("PATH %q: begin it with /", a[3])
		}
	}
	f.said.Headers, f.said.Claims, f.said.Answers = map[string][]string{}, nil, map[string]rules.Answer{}
	for _, text := range f.headers {
		name, value, err := parseHeader(text)
		if err != nil {
			return fmt.Errorf("--header %q: %w", text, err)
		}
		f.said.Headers[name] = append(f.said.Headers[name], value)
	}
	for _, text := range f.claims {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return fmt.Errorf("--claim %q: write NAME=VALUE", text)
		}
		if f.said.Claims == nil {
			f.said.Claims = map[string]any{}
		}
		if err := setClaim(f.said.Claims, name, value); err != nil {
			return fmt.Errorf("--claim %q: %w", text, err)
		}
	}
	for _, text := range f.answers {
		name, value, _ := strings.Cut(text, "=")
		answer, ok := map[string]rules.Answer{"allow": rules.Allows, "refuse": rules.Refuses}[value]
		if !ok || name == "" {
			return fmt.Errorf("--answer %q: write PROVIDER=allow or PROVIDER=refuse", text)
		}
		f.said.Answers[name] = answer
	}
	for _, ip := range []struct {
		flag, text string
		into       *netip.Addr
	}{{"source-ip", f.sourceIP, &f.said.SourceIP}, {"remote-ip", f.remoteIP, &f.said.RemoteIP}} {
		if ip.text == "" {
			continue
		}
		if *ip.into, err = netip.ParseAddr(ip.text); err != nil {
			return fmt.Errorf("--%s %q is no IP address", ip.flag, ip.text)
		}
	}
	return nil
}

// parseHeader reads a header, its name in small letters and its value without the spaces around it, as a proxy does.
func parseHeader(text string) (name, value string, _ error) {
	name, value, ok := strings.Cut(text, "=")
	name, value = strings.ToLower(name), strings.Trim(value, " \t")
	switch {
	case !ok || name == "":
		return "", "", errors.New("write NAME=VALUE")
	case name == "host" || name == ":authority":
		return "", "", fmt.Errorf("name the host by --host %s", value)
	case strings.HasPrefix(name, ":"):
		return "", "", errors.New("write METHOD and PATH after TO")
	case strings.Trim(name, headerCharacters) != "":
		return "", "", fmt.Errorf("a name has letters, digits and some of %s alone", headerMarks)
	case strings.ContainsAny(value, "\r\n\x00"):
		return "", "", errors.New("a value has no line break: repeat --header for another header")
	}
	return name, value, nil
}

// setClaim sets a claim, NAME or [A][B]. A claim that is set again becomes a list.
func setClaim(claims map[string]any, name, text string) error {
	var value any = text
	if strings.HasPrefix(text, "[") || strings.HasPrefix(text, "{") {
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			return fmt.Errorf("the value begins as JSON and is none: %w", err)
		}
	}
	path := []string{name}
	if inner, ok := strings.CutPrefix(name, "["); ok && strings.HasSuffix(inner, "]") {
		path = strings.Split(strings.TrimSuffix(inner, "]"), "][")
	}
	for _, step := range path[:len(path)-1] {
		below, ok := claims[step].(map[string]any)
		if !ok && claims[step] != nil {
			return fmt.Errorf("claim %s has a value and no claims within", step)
		}
		if !ok {
			below = map[string]any{}
			claims[step] = below
		}
		claims = below
	}
	last := path[len(path)-1]
	switch old := claims[last].(type) {
	case nil:
		claims[last] = value
	case []any:
		claims[last] = append(old, value)
	default:
		claims[last] = []any{old, value}
	}
	return nil
}
