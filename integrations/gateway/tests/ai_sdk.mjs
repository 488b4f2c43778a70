// Generates with a tool, streams a tool call, and provokes an error, by the AI SDK: node ai_sdk.mjs BASE_URL KEY MODEL
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, apiKey, model] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "gateway", baseURL, apiKey });
const look = { description: "look", inputSchema: z.object({ at: z.string() }) };
const asked = { prompt: "hi", maxRetries: 0 };

const generated = await generateText({
  ...asked,
  model: provider(model),
  tools: { look: tool({ ...look, execute: async () => "blue" }) },
  stopWhen: stepCountIs(3),
});

const stream = streamText({ ...asked, model: provider(model), tools: { look: tool(look) } });
const calls = await stream.toolCalls;

let error = 0;
try {
  await generateText({ ...asked, model: provider("lac/large") });
} catch (failure) {
  error = failure.statusCode;
}

console.log(
  JSON.stringify({
    generated: {
      text: generated.text,
      steps: generated.steps.length,
      outputTokens: generated.totalUsage.outputTokens,
    },
    streamed: { toolName: calls[0].toolName, input: calls[0].input },
    error,
  }),
);
