package proxyview

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
)

// ShowLogLevels shows, and sets if the request says so, the log levels of all Envoys whose Pods a selector selects.
func (r Request) ShowLogLevels(ctx context.Context, mesh *meshclient.Mesh, which meshclient.Selection) error {
	clients, err := admins(ctx, mesh, which)
	if err != nil {
		return err
	}
	loggers := map[string][]envoyadmin.Logger{}
	for name, client := range clients {
		if loggers[name], err = r.setLoggers(ctx, client); err != nil {
			return fmt.Errorf("proxy %s: %w", name, err)
		}
	}
	if r.Output != "" {
		return structured.Print(r.Out, r.Output, loggers)
	}
	if len(loggers) == 0 {
		return which.ReportEmpty(r.Diagnostics, "proxies")
	}
	tab := &table.Table{Header: []string{"PROXY", "LOGGER", "LEVEL"}}
	for _, name := range slices.Sorted(maps.Keys(loggers)) {
		for _, l := range loggers[name] {
			tab.Add(name, l.Name, l.Level)
		}
	}
	return tab.Write(r.Out)
}

// admins returns clients of the admin interfaces of all Envoys whose Pods are selected, by name.
func admins(ctx context.Context, mesh *meshclient.Mesh, which meshclient.Selection) (map[string]*envoyadmin.Client, error) {
	selector, err := which.Labels()
	if err != nil {
		return nil, err
	}
	out := map[string]*envoyadmin.Client{}
	controlPlane, err := mesh.ControlPlane(ctx)
	if err != nil {
		return nil, err
	}
	if controlPlane != nil {
		list, err := mesh.Fleet(ctx, which)
		if err != nil {
			return nil, err
		}
		for _, p := range list.GetProxies() {
			name := meshclient.ProxyName(p.GetNodeId())
			if _, known := out[name]; known || p.GetUnverified() || meshclient.ProxyType(p.GetNodeId()) == meshclient.Proxyless {
				continue
			}
			pod, err := mesh.Pod(ctx, meshclient.PodName(p), p.GetNamespace())
			if err != nil {
				return nil, err
			}
			if out[name], err = pod.Admin(); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	state, err := mesh.State()
	if err != nil {
		return nil, err
	}
	for i := range state.Pods {
		pod := &state.Pods[i]
		if pod.Agent != nil && pod.Kind != meshclient.Proxyless && (which.Namespace == "" || pod.Namespace == which.Namespace) &&
			selector.Matches(labels.Set(pod.Labels)) {
			out[pod.ID()] = envoyadmin.New(pod.Agent.AdminSocket)
		}
	}
	return out, nil
}

// setLoggers sets the log levels that the flags ask for, and lists the loggers.
func (r Request) setLoggers(ctx context.Context, client *envoyadmin.Client) ([]envoyadmin.Logger, error) {
	switch {
	case r.Reset:
		return client.ResetLogLevels(ctx)
	case r.Level != "":
		return client.SetLogLevels(ctx, r.Level)
	}
	return client.Loggers(ctx)
}

func (r Request) showLoggers(ctx context.Context, client *envoyadmin.Client, _ string) error {
	list, err := r.setLoggers(ctx, client)
	if err != nil {
		return err
	}
	if r.Output != "" {
		return structured.Print(r.Out, r.Output, list)
	}
	return envoyadmin.LoggersTable(list).Write(r.Out)
}
