// Package istioctl says what replaces the commands and flags of istioctl that fairlead does not have.
package istioctl

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// Command says which command of fairlead replaces one of istioctl.
type Command struct {
	// Name lists the words, separated by blanks, that users type for the command and fairlead does not know; empty if
	// fairlead has the command. example is what users of istioctl write; rows without one are not in the table of the
	// documentation.
	Name, Example string
	// Instead says, in Markdown, what replaces the command.
	Instead string
}

// Commands is the table "istioctl → fairlead" of docs/reference/cli.md. Hint looks unknown commands up in
// it.
var Commands = []Command{
	{"", "proxy-status [POD]", "`fairlead proxy-status [POD]`; a POD is shown with the revisions that it was sent and has acknowledged, not " +
		"compared with a dump"},
	{"", "proxy-config cluster|listener|route|endpoint|secret|bootstrap|ecds|all POD",
		"the same, with the same aliases and filters; the order of section and POD does not matter"},
	{"", "proxy-config log POD|-l app=web --level http:debug|--reset", "the same; `--reset` sets what the proxy was started with"},
	{"rootca-compare", "proxy-config rootca-compare POD POD",
		"missing: compare the serial numbers of `ROOTCA` in `fairlead proxy-config secrets` of both"},
	{"", "--kubeconfig, --context, --istioNamespace of proxy-status, proxy-config, describe",
		"the same, by port-forward to every replica; without them the mesh of `--run-dir` goes before the kubeconfig; `--xds-address` is " +
			"`--config-watcher-address` and `--xds-server-address` with `--token-file`"},
	{"", "proxy-config … -o json|yaml|short", "the same; `short`, a table, is the default"},
	{"", "proxy-config … --file DUMP", "the same"},
	{"", "validate -f FILE", "`fairlead validate -f FILE`, without a mesh; `fairlead config apply -f FILE --dry-run` against a running one"},
	{"", "version -o json|yaml, version --short, --remote=false",
		"the same; without `--short` each replica of the control plane has a line, and the services of a run directory are asked before those " +
			"of the cluster"},
	{"", "completion bash|zsh|fish", "the same, with the mesh's proxies, kinds, names and namespaces"},
	{"", "analyze FILE, analyze -A",
		"the same: `fairlead analyze -A` reads the API server; with files it is read with `--kube` alone; warnings of a running mesh are told " +
			"by `fairlead config apply`, too"},
	{"", "x wait --for=distribution KIND NAME --generation --threshold", "`fairlead wait`, also `--for programmed` and `deleted`"},
	{"", "kube-inject", "the same, from the cluster's ConfigMaps or from files; [what differs](injection-differences.md) has a reason each; " +
		"`fairlead up` gives every Pod its proxy by itself"},
	{"", "manifest generate -f FILE --set path=value",
		"the same, from Fairlead's install package, or from that of `--manifests`; [what differs](install-differences.md) has a reason each"},
	{"", "profile list, profile dump, profile diff (istioctl 1.23 and older)", "the same, of the install package of `--manifests`"},
	{"", "install, uninstall, upgrade, verify-install (istioctl 1.23 and older)",
		"the same, from the install package of `--manifests`; fields that others manage are named, and taken over with `--force` only; " +
			"`fairlead diff` shows what would change, `fairlead rollback` takes it back"},
	{"", "manifest migrate, manifest diff (istioctl 1.23 and older), tag, x precheck",
		"the same; [moving from Istio](../guide/moving-from-istio.md)"},
	{"translate", "manifest translate", "missing: the charts of an install package take the values of the IstioOperator as they are"},
	{"", "operator init, dump, remove (istioctl 1.23 and older)",
		"the same; `fairlead operator` alone is the operator itself ([guide](../guide/operator.md))"},
	{"", "x check-inject", "the same, also of StatefulSets and DaemonSets, with the nearest name where there is no such Pod or namespace"},
	{"injector", "x injector list", "`fairlead tag list` lists revisions; `fairlead check-inject` says which injector is asked about a Pod"},
	{"", "x workload group create, x workload entry configure", "the same; `fairlead vm bootstrap` is the latter with `--autoregister`"},
	{"", "x config list", "missing: `fairlead` has no settings beside flags and the environment"},
	{"", "describe pod|service, x describe",
		"the same, with the rules that a client's proxy has, and findings; `fairlead why PROXY HOST` says more of one resource"},
	{"internal-debug", "x internal-debug",
		"istioctl itself, with the files of `fairlead credentials`; or the debug pages of each service's operations port, `http://<operations " +
			"port>/debug/`, with the administrator's token"},
	{"", "dashboard controlz|istiod-debug|envoy|proxy|grafana|jaeger|kiali|prometheus|zipkin|skywalking",
		"the same, and `config-watcher`, `xds-server`, `ca`; the pages of services and proxies need the key in the URL that is printed"},
	{"admin", "admin log", "missing while it runs: `fairlead up --log-level`; of one Envoy `fairlead proxy-config log`"},
	{"", "bug-report", "the same, also of a mesh on one machine; `--full-secrets` is refused"},
	{"", "bug-report version", "`fairlead version`"},
	{"", "create-remote-secret", "the same, with `--to` and `--rotate` ([multicluster](../guide/multicluster.md)); the account is " +
		"`fairlead-reader`, with `--type config` config-watcher's; without `--auth-type plugin`, for which istioctl itself is"},
	{"", "remote-clusters", "the same, with the state of each cluster and what to do"},
	{"waypoint", "waypoint, ztunnel-config", "missing: there is no ambient mode"},
	{"ztunnel-config", "", "missing: there is no ambient mode"},
	{"", "x authz check POD", "`fairlead authz check POD` lists the policies; `fairlead authz check FROM POD GET /path` decides a request"},
	{"metrics envoy-stats", "x metrics, x envoy-stats", "missing: each agent's `/stats/prometheus`"},
	{"options", "options", "`fairlead help`"},
}

// Flags are flags of istioctl that fairlead does not have, with what to do instead; flagHint shows it.
var Flags = map[string]string{
	"kubeconfig":     whichMesh,
	"context":        whichMesh,
	"istioNamespace": whichMesh,
	"i":              whichMesh,
	"xds-address":    whichMesh,
	"revision":       "this command asks the mesh of --run-dir, or of addresses, which has one revision",
}

// whichMesh says how a command finds its mesh.
const whichMesh = "the mesh is named by --run-dir, or by addresses and --token-file"

// Hint says what replaces a command of istioctl; of `istioctl x NAME` it looks NAME up.
func Hint(words []string) string {
	word, experimental := words[0], slices.Contains([]string{"x", "exp", "experimental"}, words[0])
	if experimental && len(words) > 1 {
		word = words[1]
	}
	i := slices.IndexFunc(Commands, func(e Command) bool { return slices.Contains(strings.Fields(e.Name), word) })
	switch {
	case i < 0 && experimental:
		return ": istioctl's; the table \"From istioctl\" in docs/reference/cli.md says what does its work here"
	case i < 0:
		return ""
	}
	instead := unlinked(Commands[i].Instead)
	if why, missing := strings.CutPrefix(instead, "missing"); missing {
		return ": istioctl's, missing here" + why
	}
	return ": istioctl's; instead: " + instead
}

var link = regexp.MustCompile(`\[[^]]*\]\(([^)#]*)[^)]*\)`)

// unlinked replaces the links of a row of docs/reference/cli.md by the paths that they lead to.
func unlinked(markdown string) string {
	return link.ReplaceAllStringFunc(markdown, func(text string) string {
		return path.Join("docs/reference", link.FindStringSubmatch(text)[1])
	})
}
