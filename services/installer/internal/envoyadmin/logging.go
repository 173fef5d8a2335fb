package envoyadmin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/installer/internal/table"
)

// LogLevels are the levels of Envoy's loggers, the most verbose first.
var LogLevels = []string{"trace", "debug", "info", "warning", "error", "critical", "off"}

// Logger is one of Envoy's loggers.
type Logger struct {
	Name  string `json:"name"`
	Level string `json:"level"`
}

// Loggers fetches the loggers with their levels, sorted by name.
func (c *Client) Loggers(ctx context.Context) ([]Logger, error) { return c.logging(ctx, "") }

// SetLogLevels changes levels of loggers and returns all loggers with their new levels. levels is "<level>" for all of
// them, or "<logger>:<level>", separated by commas. It changes nothing if a logger or a level does not exist.
func (c *Client) SetLogLevels(ctx context.Context, levels string) ([]Logger, error) {
	there, err := c.Loggers(ctx)
	if err != nil {
		return nil, err
	}
	all, paths, err := parseLevels(levels, there)
	if err != nil {
		return nil, err
	}
	if all != "" {
		if there, err = c.logging(ctx, "?level="+url.QueryEscape(all)); err != nil {
			return nil, err
		}
	}
	if len(paths) > 0 {
		return c.logging(ctx, "?paths="+url.QueryEscape(strings.Join(paths, ",")))
	}
	return there, nil
}

// ResetLogLevels sets the levels that the Envoy was started with.
func (c *Client) ResetLogLevels(ctx context.Context) ([]Logger, error) {
	var info struct {
		Options struct {
			Level      string `json:"log_level"`
			Components string `json:"component_log_level"`
		} `json:"command_line_options"`
	}
	if err := c.getJSON(ctx, "/server_info", "server info", &info); err != nil {
		return nil, err
	}
	if info.Options.Level == "" {
		return nil, errors.New("server info: Envoy does not say which log level it was started with; name one with --level")
	}
	return c.SetLogLevels(ctx, strings.TrimSuffix(info.Options.Level+","+info.Options.Components, ","))
}

// parseLevels parses the levels of SetLogLevels: all is the level of all loggers, paths are single ones in Envoy's
// spelling.
func parseLevels(levels string, there []Logger) (all string, paths []string, err error) {
	names := lists.Map(there, func(l Logger) string { return l.Name })
	for part := range strings.SplitSeq(levels, ",") {
		name, level, single := strings.Cut(strings.TrimSpace(part), ":")
		if !single {
			name, level = "", name
		}
		if level == "warn" {
			level = "warning"
		}
		switch {
		case !slices.Contains(LogLevels, level):
			return "", nil, fmt.Errorf("%q is no log level%s; there are %s", level, nearest.Hint(level, LogLevels), strings.Join(LogLevels, ", "))
		case single && !slices.Contains(names, name):
			return "", nil, fmt.Errorf("no logger of Envoy is named %q%s; without --level all of them are listed", name, nearest.Hint(name, names))
		case single:
			paths = append(paths, name+":"+level)
		default:
			all = level
		}
	}
	return all, paths, nil
}

// logging posts to /logging, which answers with a line " <name>: <level>" for each logger.
func (c *Client) logging(ctx context.Context, query string) ([]Logger, error) {
	body, err := c.ask(ctx, http.MethodPost, "/logging"+query)
	if err != nil {
		return nil, err
	}
	list := []Logger{}
	for line := range strings.SplitSeq(string(body), "\n") {
		if name, level, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			list = append(list, Logger{name, level})
		}
	}
	slices.SortFunc(list, func(a, b Logger) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// LoggersTable is the table of loggers.
func LoggersTable(list []Logger) *table.Table {
	t := &table.Table{Header: []string{"LOGGER", "LEVEL"}}
	for _, l := range list {
		t.Add(l.Name, l.Level)
	}
	return t
}
