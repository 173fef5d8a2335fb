// Package process is the life of a program: signals, a group of tasks that live and die together, and exit codes.
package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
)

// Task is one long-running part of a program, such as a server or a watcher.
type Task struct {
	// Name appears in the error when the task fails.
	Name string
	// Run blocks until ctx ends or the task fails. Returning before ctx ends, even with nil, stops the whole group.
	Run func(ctx context.Context) error
}

// ErrEnded is the cause when a task returns nil although nobody asked it to stop.
var ErrEnded = errors.New("ended although nobody asked it to stop")

// Run runs all tasks and waits for all of them. The first to return before ctx ends cancels the others and its error, with the
// task's name, is the result. When ctx ends, tasks that return nil or ctx's error have stopped cleanly; if all did, the result is nil.
func Run(ctx context.Context, log *slog.Logger, tasks ...Task) error {
	group, cancel := context.WithCancel(ctx)
	defer cancel()

	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		first error
	)
	for _, task := range tasks {
		wg.Add(1)
		go func() {
			defer wg.Done()
			err := task.Run(group)

			mu.Lock()
			defer mu.Unlock()
			stopping := group.Err() != nil
			switch {
			case stopping && (err == nil || errors.Is(err, group.Err())):
				log.Debug("task stopped", "task", task.Name)
				return
			case err == nil:
				err = ErrEnded
			}
			err = fmt.Errorf("%s: %w", task.Name, err)
			if first == nil {
				first = err
			} else {
				log.Warn("task failed while stopping", "task", task.Name, "error", err)
			}
			cancel()
		}()
	}
	wg.Wait()
	return first
}
