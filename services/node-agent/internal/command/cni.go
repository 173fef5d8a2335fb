package command

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/telemetry"
	"fairlead.dev/services/node-agent/internal/cni"
	"fairlead.dev/services/node-agent/internal/cni/plugin"
)

// nodeAgent makes the command "cni".
func nodeAgent(stderr io.Writer) *cobra.Command {
	var c cni.Config
	var logLevel, label string
	var chained bool
	cmd := &cobra.Command{
		Use:   "cni",
		Short: "Keep the CNI plugin on this node, which redirects the traffic of Pods without an init container",
		Long: "Runs on every node, as a DaemonSet: installs the CNI plugin fairlead-cni and its entry in the node's CNI configuration, and " +
			"again when\n" +
			"something else removes them; tells the plugin which Pods have a sidecar; repairs Pods that started before the plugin. When its " +
			"DaemonSet\n" +
			"is deleted it takes the plugin out.",
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := telemetry.NewLogger(stderr, logLevel, "node-agent")
			if err != nil {
				return process.WithExitCode(fmt.Errorf("--log-level: %w", err), process.ExitUsage)
			}
			c.Install.Unchained = !chained
			c.Install.Plugin.Capabilities = map[string]bool{"dns": true}
			var found bool
			c.LabelKey, c.LabelValue, found = strings.Cut(label, "=")
			if err := checkNodeAgent(&c, found); err != nil {
				return process.WithExitCode(err, process.ExitUsage)
			}
			reg := prometheus.NewRegistry()
			reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
			return cni.Run(cmd.Context(), c, reg, log)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&c.Install.BinDir, "cni-bin-dir", "/host/opt/cni/bin", "the node's directory of CNI plugins")
	fs.StringVar(&c.Install.ConfDir, "cni-conf-dir", "/host/etc/cni/net.d", "the node's directory of CNI configurations")
	fs.StringVar(&c.Install.ConfName, "cni-conf-name", "",
		"the configuration to add the plugin to (default: the first in that directory, which the runtime uses)")
	fs.BoolVar(&chained, "chained", true,
		"add the plugin to a configuration; false writes one of its own, for a plugin that refers to it, such as Multus")
	fs.StringVar(&c.Install.Program, "plugin", "/usr/local/bin/"+plugin.Name, "the plugin's program")
	fs.StringVar(&c.Install.Plugin.Socket, "socket", "/var/run/fairlead-cni/agent.sock",
		"socket for the plugin; the path is the same on the node")
	fs.StringSliceVar(&c.Install.Plugin.ExcludeNamespaces, "exclude-namespaces", []string{"kube-system"},
		"namespaces whose Pods are left alone")
	fs.StringVar(&c.Install.Plugin.AgentNamespace, "pod-namespace", os.Getenv("POD_NAMESPACE"), "namespace of this Pod (POD_NAMESPACE)")
	fs.StringVar(&c.Install.Plugin.AgentName, "daemon-set", "fairlead-cni-node", "name of its DaemonSet")
	fs.StringVar(&c.Node, "node-name", os.Getenv("NODE_NAME"), "name of this node (NODE_NAME)")
	fs.StringVar((*string)(&c.Repair), "repair", string(cni.RepairPod),
		"what happens to a Pod that started before the plugin: repair writes its rules, delete deletes it, label labels it, off")
	fs.StringVar(&c.InitContainer, "init-container", "istio-validation", "init container whose exit code 126 says that a Pod has no rules")
	fs.StringVar(&label, "broken-pod-label", "cni.istio.io/uninitialized=true", "key=value of --repair label")
	fs.StringVar(&c.Proc, "host-proc", "/host/proc", "the node's /proc, for --repair repair")
	fs.StringVar(&c.Taint, "taint", "",
		"key of a taint that is removed from this node once the plugin is there, such as cni.istio.io/not-ready")
	fs.StringVar(&c.Kube.Address, "kubernetes-address", kubernetesAddress(),
		"host:port of Kubernetes' API (KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT)")
	fs.StringVar(&c.Kube.Dir, "kubernetes-dir", "/var/run/secrets/kubernetes.io/serviceaccount",
		"directory with the files token and ca.crt for it")
	fs.StringVar(&c.OpsAddress, "ops-address", ":15014", "address of the HTTP port for metrics and probes")
	fs.StringVar(&logLevel, "log-level", "info", "log level: debug, info, warn or error")
	return cmd
}

// kubernetesAddress is where a Pod finds the API; "" outside of one.
func kubernetesAddress() string {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// checkNodeAgent names every flag of "cni" that must be corrected.
func checkNodeAgent(c *cni.Config, labelled bool) error {
	var errs []error
	for flag, value := range map[string]string{
		"--node-name": c.Node, "--pod-namespace": c.Install.Plugin.AgentNamespace, "--daemon-set": c.Install.Plugin.AgentName,
		"--socket": c.Install.Plugin.Socket,
	} {
		if value == "" {
			errs = append(errs, fmt.Errorf("%s: must not be empty", flag))
		}
	}
	if !slices.Contains([]cni.Repair{cni.RepairOff, cni.RepairLabel, cni.RepairDelete, cni.RepairPod}, c.Repair) {
		errs = append(errs, fmt.Errorf("--repair %q: want repair, delete, label or off", c.Repair))
	}
	if !labelled || c.LabelKey == "" {
		errs = append(errs, errors.New("--broken-pod-label: want key=value"))
	}
	if strings.Contains(c.Install.ConfName, "/") {
		errs = append(errs, fmt.Errorf("--cni-conf-name %q: want the name of a file in --cni-conf-dir", c.Install.ConfName))
	}
	return errors.Join(errs...)
}
