package authzview

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/meshclient"
)

// FromMesh reads a mesh that runs: the objects in force from config-watcher, and which proxies are connected.
func FromMesh(ctx context.Context, mesh *meshclient.Mesh) (*Mesh, error) {
	var found []object
	var notes []string
	var keyless map[string]string
	servicesKnown := true
	err := mesh.Call(ctx, func(ctx context.Context, client *configapi.Client) (err error) {
		for _, kind := range Kinds {
			res, err := client.List(ctx, &configv1.ListRequest{Kind: kind, InForce: true})
			if err = client.Explain(err); err != nil {
				gone, away := new(configapi.NotFoundError), new(configapi.UnreachableError)
				switch {
				case errors.As(err, &gone):
				case errors.As(err, &away), kind == "AuthorizationPolicy":
					return err
				default:
					servicesKnown = servicesKnown && kind != "Service" && kind != "ServiceEntry"
					notes = append(notes, fmt.Sprintf("%s are not known: %v", kinds.Plural(kind), err))
				}
				continue
			}
			for _, o := range res.GetObjects() {
				parsed := object{location: o.GetLocation(), raw: o.GetManifest(), held: o.GetHeldClosed()}
				if err := json.Unmarshal(o.GetManifest(), &parsed); err != nil {
					return fmt.Errorf("%s: %w", kinds.Text(o.GetKey()), err)
				}
				parsed.Kind, parsed.Namespace, parsed.Name = kind, o.GetKey().GetNamespace(), o.GetKey().GetName()
				found = append(found, parsed)
			}
		}
		if keyless, err = keylessTokens(ctx, client); err != nil {
			notes = append(notes, fmt.Sprintf("whether the keys of RequestAuthentications are there is not known: %v", err))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	m, err := build(found, nil, true)
	if err != nil {
		return nil, err
	}
	for i, t := range m.Tokens {
		m.Tokens[i].Keyless = keyless[tokensName(t)]
	}
	m.Notes, m.servicesKnown = notes, servicesKnown
	fleet, err := mesh.Fleet(ctx, meshclient.Selection{})
	if err != nil {
		m.Notes = append(m.Notes, fmt.Sprintf("which proxies are connected is not known: %v", err))
		return m, nil
	}
	for _, silent := range fleet.Silent {
		m.Notes = append(m.Notes, fmt.Sprintf("the proxies of another config-watcher are not known: %v", silent))
	}
	m.connect(fleet.GetProxies(), len(fleet.Silent) == 0)
	return m, nil
}

// keylessTokens says of RequestAuthentications, by "NAMESPACE/NAME", why keys of theirs are missing.
func keylessTokens(ctx context.Context, client *configapi.Client) (map[string]string, error) {
	res, err := client.Status(ctx, &configv1.StatusRequest{Kind: requestAuthentication})
	if err != nil {
		return nil, client.Explain(err)
	}
	out := map[string]string{}
	for _, o := range res.GetObjects() {
		for _, c := range o.GetConditions() {
			if o.GetInForce() && o.GetKey().GetKind() == requestAuthentication && c.GetType() == "ResolvedRefs" && c.GetStatus() == "False" {
				out[o.GetKey().GetNamespace()+"/"+o.GetKey().GetName()] = c.GetMessage()
			}
		}
	}
	return out, nil
}

// connect notes which workloads have a proxy. If all proxies are known, the other workloads have none.
func (m *Mesh) connect(proxies []*configv1.ProxyStatus, all bool) {
	status := map[string]*configv1.ProxyStatus{}
	for _, p := range proxies {
		if !p.GetUnverified() {
			status[meshclient.PodName(p)+"."+p.GetNamespace()] = p
		}
	}
	for _, w := range m.Workloads {
		p := status[w.ID()]
		switch {
		case p != nil:
			if p.GetIdentity() != "" {
				w.Identity = p.GetIdentity()
			}
			w.NotInjected = false
			w.Proxy = map[string]Proxy{"router": Gateway, meshclient.Proxyless: Proxyless}[meshclient.ProxyType(p.GetNodeId())]
			if w.Proxy == ProxyUnknown {
				w.Proxy = Sidecar
			}
		case all && w.Proxy == ProxyUnknown:
			w.Proxy = NoProxy
		}
	}
}
