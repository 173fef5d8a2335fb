package cli

// istioctlCommand says which command of fairlead replaces one of istioctl.
type istioctlCommand struct {
	// name lists the words, separated by blanks, that users type for the command and fairlead does not know; empty if
	// fairlead has the command. example is what users of istioctl write; rows without one are not in the table of the
	// documentation.
	name, example string
	// instead says, in Markdown, what replaces the command.
	instead string
}

// fromIstioctl is the table "istioctl → fairlead" of docs/reference/cli.md. istioctlHint looks unknown commands up in
// it.
var fromIstioctl = []istioctlCommand{
	{"", "proxy-status [POD]", "`fairlead proxy-status [POD]`; a POD is shown with the revisions that it was sent and has acknowledged, not compared with a dump"},
	{"", "proxy-config cluster|listener|route|endpoint|secret|bootstrap|ecds|all POD", "the same, with the same aliases and filters; the order of section and POD does not matter"},
	{"", "proxy-config log POD|-l app=web --level http:debug|--reset", "the same; `--reset` sets what the proxy was started with"},
	{"", "proxy-config rootca-compare POD POD", "missing: compare the serial numbers of `ROOTCA` in `fairlead proxy-config secrets` of both"},
	{"", "--kubeconfig, --context, --istioNamespace, --revision, --xds-address", "none: `--run-dir`, or `--config-watcher-address` and `--xds-server-address` with `--token-file`"},
	{"", "proxy-config … -o json|yaml|short", "the same; `short`, a table, is the default"},
	{"", "proxy-config … --file DUMP", "the same"},
	{"", "validate -f FILE", "`fairlead validate -f FILE`, without a mesh; `fairlead config apply -f FILE --dry-run` against a running one"},
	{"", "version -o json|yaml, version --short", "the same, without `--remote`: the services of the run directory are asked"},
	{"", "completion bash|zsh|fish", "the same, with the mesh's proxies, kinds, names and namespaces"},
	{"analyze", "analyze", "warnings of `fairlead config apply`, of `fairlead up` and in objects' status; `fairlead why` for one resource of one proxy"},
	{"wait", "x wait", "`fairlead config apply --wait`"},
	{"kube-inject", "kube-inject", "`fairlead up` gives every Pod its proxy; on Kubernetes the objects in `deploy/` say what a Pod with a proxy looks like"},
	{"install", "install, upgrade, uninstall, manifest", "the objects in `deploy/`; on one machine `fairlead up` and `fairlead down`"},
	{"upgrade", "", "the objects in `deploy/`"},
	{"uninstall", "", "`fairlead down` on one machine"},
	{"manifest", "", "the objects in `deploy/`"},
	{"tag", "tag", "missing: there are no revisions of the control plane beside each other"},
	{"describe", "x describe pod|service", "`fairlead why PROXY HOST`"},
	{"internal-debug", "x internal-debug", "istioctl itself, with the files of `fairlead credentials`; or the debug pages of each service's operations port, `http://<operations port>/debug/`, with the administrator's token"},
	{"dashboard dash d", "dashboard", "missing: `curl --unix-socket .run/pods/<pod>.<namespace>/envoy-admin.sock http://envoy/`, metrics at each operations port"},
	{"admin", "admin log", "missing while it runs: `fairlead up --log-level`; of one Envoy `fairlead proxy-config log`"},
	{"bug-report", "bug-report", "missing: `fairlead logs`, `fairlead proxy-config all PROXY -o json`, `fairlead proxy-status -o json`"},
	{"create-remote-secret", "create-remote-secret, remote-clusters", "missing: a mesh has one cluster, of several networks"},
	{"remote-clusters", "", "missing: a mesh has one cluster"},
	{"waypoint", "waypoint, ztunnel-config", "missing: there is no ambient mode"},
	{"ztunnel-config", "", "missing: there is no ambient mode"},
	{"authz", "x authz check", "missing: AuthorizationPolicy and RequestAuthentication are refused"},
	{"metrics envoy-stats", "x metrics, x envoy-stats", "missing: each agent's `/stats/prometheus`"},
	{"precheck", "", "missing: nothing is installed or upgraded"},
	{"options", "options", "`fairlead help`"},
}

// istioctlFlags are flags of istioctl that fairlead does not have, with what to do instead; flagHint shows it.
var istioctlFlags = map[string]string{
	"kubeconfig":     whichMesh,
	"context":        whichMesh,
	"istioNamespace": whichMesh,
	"i":              whichMesh,
	"xds-address":    whichMesh,
	"revision":       "leave it out: there are no revisions of the control plane beside each other",
	"remote":         "leave it out: the services of the run directory are asked, and --short asks nobody",
}

// whichMesh says how a command finds its mesh.
const whichMesh = "the mesh is named by --run-dir, or by addresses and --token-file"
